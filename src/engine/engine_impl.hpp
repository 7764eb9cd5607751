// engine/engine_impl.hpp - the object behind the public handles: one Engine's parts, put together.
//
// Owns topology, registry, transports, TransferScheduler, ProgressThread and Control, declared in
// the order in which they need each other, and receives the events of Control's Sessions.
// On the path of a byte: checks and plans what the user submits, then calls
// TransferScheduler::submit().
// Threads: any thread; control::Listener functions run on the Control thread.
// Invariants: transports outlive endpoints and mappings; after close() has returned OK nothing here
// touches the user's memory.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/executor.hpp"
#include "base/fork.hpp"
#include "base/log.hpp"
#include "base/log_queue.hpp"
#include "base/options.hpp"
#include "control/control_plane.hpp"
#include "cuda/topology.hpp"
#include "engine/progress/progress_thread.hpp"
#include "engine/transfer_scheduler.hpp"
#include "engine/windows/window.hpp"
#include "linkspan/engine.hpp"
#include "memory/descriptor.hpp"
#include "memory/registry.hpp"
#include "transport/transport.hpp"

namespace linkspan::engine {

inline constexpr std::size_t kMaxNotification = control::NotificationRing::kMaxMessage;
/// Limits notifications of one peer that Engine::notifications() has not returned yet. Further ones
/// are dropped and logged.
inline constexpr std::size_t kMaxWaitingNotifications = 65536;
inline constexpr std::size_t kMaxWaitingBytes = std::size_t{16} << 20;
inline constexpr std::size_t kMaxWaitingBytesOfAll = std::size_t{256} << 20;
/// Limits EngineImpl::EarlyNotifications of one peer.
inline constexpr std::size_t kMaxEarlyBytes = std::size_t{1} << 20;
/// Limits the requests of one peer that wait for a version of a set.
inline constexpr std::size_t kMaxSetWaits = 64;
/// Limits peers that wait for accept(). Beyond it those that are gone are forgotten.
inline constexpr std::size_t kMaxUnaccepted = 4096;

class EngineImpl final : public control::SessionEvents,
                         private WindowCopier,
                         public std::enable_shared_from_this<EngineImpl> {
 public:
  static Result<std::shared_ptr<EngineImpl>> open(const EngineOptions& options);
  ~EngineImpl();
  /// Returns the object behind a handle, null for a handle that names no Engine.
  static const std::shared_ptr<EngineImpl>& of(const Engine& engine) noexcept {
    return engine.impl_;
  }
  EngineImpl(const EngineImpl&) = delete;
  EngineImpl& operator=(const EngineImpl&) = delete;

  // engine_impl_memory.cpp
  Result<Region> register_memory(void* pointer, std::uint64_t bytes, const RegionOptions& options);
  Result<Region> allocate_shared(std::uint64_t bytes, const RegionOptions& options);
  Status deregister(const Region& region, Duration timeout) LINKSPAN_EXCLUDES(exports_mutex_);
  Status invalidate(const Region& region, Duration timeout) LINKSPAN_EXCLUDES(exports_mutex_);

  // engine_impl_peers.cpp
  Status listen(std::string_view address);
  std::string address() const LINKSPAN_EXCLUDES(events_mutex_);
  Result<Peer> connect(std::string_view address, const ConnectOptions& options);
  Result<Peer> accept(Duration timeout) LINKSPAN_EXCLUDES(events_mutex_);
  Status notify(std::uint64_t peer, std::span<const std::byte> message);
  std::vector<Notification> notifications() LINKSPAN_EXCLUDES(events_mutex_, drain_mutex_);
  std::vector<Notification> notifications(Duration timeout)
      LINKSPAN_EXCLUDES(events_mutex_, drain_mutex_);
  PeerState state(std::uint64_t peer);
  Status close(std::uint64_t peer, Duration timeout) LINKSPAN_EXCLUDES(events_mutex_);

  // engine_impl_names.cpp
  Status publish(std::string_view name, const Region& region) LINKSPAN_EXCLUDES(sets_mutex_);
  Result<std::uint64_t> publish(std::string_view name, std::span<const Region> regions)
      LINKSPAN_EXCLUDES(sets_mutex_);
  Result<RemoteRegion> lookup(std::uint64_t peer, std::string_view name, Duration timeout)
      LINKSPAN_EXCLUDES(events_mutex_);
  Result<RegionSet> lookup_set(std::uint64_t peer, std::string_view name, Duration timeout)
      LINKSPAN_EXCLUDES(events_mutex_);
  Result<std::uint64_t> await_version(std::uint64_t peer, std::string_view name,
                                      std::uint64_t above, Duration timeout)
      LINKSPAN_EXCLUDES(events_mutex_);

  // engine_impl_transfers.cpp
  Result<Transfer> submit(std::uint64_t peer, Op op, const Region& local,
                          const RemoteRegion& remote, const UserShape& shape,
                          const TransferOptions& options);
  std::vector<Result<Transfer>> write_to_all(const Region& local,
                                             std::span<const RemoteRegion> targets,
                                             const UserShape& shape,
                                             const TransferOptions& options);
  Result<Prepared> prepare(std::uint64_t peer, Op op, const Region& local,
                           const RemoteRegion& remote, UserShape shape);
  Result<Transfer> post(const std::shared_ptr<PreparedState>& prepared,
                        const TransferOptions& options);
  Result<Transfer> post(const PreparedState& prepared, std::span<const std::uint32_t> subset,
                        const TransferOptions& options);
  // engine_impl.cpp
  Result<Explanation> explain(std::uint64_t peer, Op op, const Region& local,
                              const RemoteRegion& remote, transport::BatchSummary shape);
  // engine_impl_windows.cpp
  Result<Window> window(std::uint64_t peer, const Region& local, const RemoteRegion& remote,
                        const Region& local_pad, const RemoteRegion& remote_pad,
                        const WindowOptions& options) LINKSPAN_EXCLUDES(windows_->mutex);
  Status raise(WindowState& window, std::uint32_t index, std::uint64_t n, Duration timeout)
      LINKSPAN_EXCLUDES(windows_->mutex);
  Result<std::uint64_t> wait_signal(WindowState& window, std::uint32_t index,
                                    std::uint64_t at_least, Duration timeout)
      LINKSPAN_EXCLUDES(windows_->mutex);
  Status cancel(WindowState& window) LINKSPAN_EXCLUDES(windows_->mutex);
  Status failure(const WindowState& window) LINKSPAN_EXCLUDES(windows_->mutex);
  // two_sided.cpp
  Result<Transfer> send_or_receive(std::uint64_t peer, const MessageKind& kind, const void* data,
                                   std::uint64_t bytes, const TransferOptions& options);
  /// Waits until the transfer is quiet and returns its status.
  Status finish(const Result<Transfer>& transfer);
  Status wait(TransferState& transfer, Duration timeout);
  Status cancel(TransferState& transfer);
  Status attach_completion_queue(TransferState& transfer,
                                 std::shared_ptr<CompletionQueueState> queue, std::uint64_t cookie);
  std::size_t progress();
  // engine_impl_report.cpp
  std::string dump() LINKSPAN_EXCLUDES(events_mutex_);
  std::string metrics();
  Status close(Duration timeout);
  /// Keeps this object until the process ends. Called when close() failed and no handle is left:
  /// something is not quiet, so nothing here may be freed.
  void keep_forever() { self_ = shared_from_this(); }
  /// Returns true in a forked child of the process that opened the Engine. Nothing here may be
  /// touched then.
  bool forked() const noexcept { return fork_.forked(); }

 private:
  Status end_region(const Region& region, Duration timeout, bool immediately)
      LINKSPAN_EXCLUDES(exports_mutex_);
  std::shared_ptr<const Keys> keys_of(std::uint64_t serial) LINKSPAN_EXCLUDES(exports_mutex_);
  /// Counts notifications of a peer that Engine::notifications() has not returned yet.
  struct InboxUsage {
    std::size_t count = 0, bytes = 0, dropped = 0;
    std::size_t uncounted = 0;  // not in metrics: received where the scheduler's lock is forbidden
  };
  /// Holds back notifications that came with a write until notifications that the peer sent earlier
  /// over its control connection have come.
  struct EarlyNotifications {
    struct Each {
      std::uint64_t after;  // number of control-connection notifications that come first
      std::vector<std::byte> payload;
    };
    std::uint64_t received = 0;  // over the control connection
    std::vector<Each> waiting;
    std::size_t bytes = 0;  // cost of `waiting`
  };
  void deliver_in_order(const control::Session& from, std::vector<std::byte> payload,
                        std::uint64_t after) LINKSPAN_EXCLUDES(events_mutex_);
  void deliver_early(const control::Session& from, EarlyNotifications& early,
                     std::uint64_t received) LINKSPAN_REQUIRES(events_mutex_);
  bool has_room(const InboxUsage& waiting, std::size_t bytes) const
      LINKSPAN_REQUIRES(events_mutex_);
  void deliver(const control::Session& session, std::vector<std::byte> payload)
      LINKSPAN_REQUIRES(events_mutex_);
  void drain_ring(control::Session& session, bool last)
      LINKSPAN_EXCLUDES(drain_mutex_, events_mutex_);
  /// A request to a peer for a region or a set, and its answer.
  struct Lookup {
    base::Deadline deadline;
    std::uint64_t peer = 0, id = 0;
    std::optional<Status> answer{};
    std::shared_ptr<ImportedRegion> region{};  // also the user's
    memory::PublishedSet set{};
    bool opening = false;  // an answer is being imported; a second one is ignored
  };
  Status ask(const std::shared_ptr<Lookup>& lookup, control::FrameOp op,
             std::span<const std::byte> question, std::string_view name)
      LINKSPAN_EXCLUDES(events_mutex_);
  Result<memory::PublishedSet> ask_for_set(std::uint64_t peer, const control::AskSet& question,
                                           base::Deadline deadline);
  Result<std::shared_ptr<ImportedRegion>> import_named(std::uint64_t peer, std::string_view name,
                                                       std::uint64_t serial,
                                                       base::Deadline deadline);
  std::shared_ptr<control::Session> session_of(std::uint64_t peer);
  void notify_set_waiters(std::string_view name) LINKSPAN_EXCLUDES(sets_mutex_);
  void forget_set_waits(std::uint64_t peer) LINKSPAN_EXCLUDES(sets_mutex_);

  EngineImpl(base::Options options, base::Log log, std::shared_ptr<base::LogQueue> log_queue)
      : options_(std::move(options)), log_(std::move(log)), log_queue_(std::move(log_queue)) {}
  Status set_up(const EngineOptions& options);
  /// Waits up to one second for the Control thread and returns whether it has ended.
  bool has_ended();
  /// Returns true for the first answer to a request of this side.
  bool expects(std::uint64_t peer, std::uint64_t request) LINKSPAN_EXCLUDES(events_mutex_);
  Result<Region> admit(Result<std::shared_ptr<const memory::Registration>> registration);
  /// Identity of the replying peer, copied because its Session may be destroyed before the opener
  /// thread handles the reply.
  struct PeerIdentity {
    explicit PeerIdentity(const control::Session& session)
        : id(session.id()),
          incarnation(session.incarnation()),
          this_process(session.is_this_process()),
          pid(session.pid()),
          remote(session.is_remote()) {}
    std::uint64_t id, incarnation;
    bool this_process;
    std::int64_t pid;
    bool remote;
  };
  Result<std::shared_ptr<ImportedRegion>> import(const PeerIdentity& peer,
                                                 control::ExportedRegion& exported,
                                                 base::Deadline deadline);
  void block_user_stream(TransferState& transfer, ResolvedStreams& streams);
  void finish_import(const PeerIdentity& peer, std::uint64_t request,
                     Result<control::ExportedRegion>& answer);
  void finish_import_by_serial(const PeerIdentity& peer, std::uint64_t request,
                               Result<control::ExportedRegion>& answer);
  Status begin_message(const std::shared_ptr<TransferState>& transfer);
  Result<TransferEndpoints> resolve_endpoints(std::uint64_t peer, Op op, const Region& local,
                                              const RemoteRegion& remote) const;
  Result<std::shared_ptr<const memory::Registration>> registered(const memory::RegionId& id) const;
  Result<std::shared_ptr<TransferState>> transfer_of(const PreparedState& prepared) const;
  struct Planned {
    Plan plan;
    transport::BatchSummary size;
  };
  Result<Planned> plan(const TransferEndpoints& between, const UserShape& shape) const;
  Result<Planned> plan(TransferEndpoints& between, const UserShape& shape,
                       const TransferOptions& options);
  Status check_path(const TransferEndpoints& between, const transport::BatchSummary& size,
                    const std::string& required);
  /// A submitted transfer whose release stream does not wait for it yet.
  struct Started {
    std::shared_ptr<TransferState> transfer;  // also the TransferScheduler's
    ResolvedStreams streams;
  };
  /// Submits a transfer whose regions, plan and required path were checked.
  Result<Started> start(std::shared_ptr<TransferState> transfer, transport::BatchSummary size,
                        const TransferOptions& options);
  /// Checks TransferOptions::require, then submits.
  Result<Transfer> post(std::shared_ptr<TransferState> transfer, transport::BatchSummary size,
                        const TransferOptions& options);
  /// Makes the release stream wait for the transfer and returns the user's handle.
  Result<Transfer> to_handle(Result<Started> started);
  Result<Explanation> explain(const TransferEndpoints& between, transport::BatchSummary shape);
  /// Counts an import or its failure for metrics() and dump(), and returns `region` unchanged.
  Result<std::shared_ptr<ImportedRegion>> counted(const PeerIdentity& peer,
                                                  Result<std::shared_ptr<ImportedRegion>> region);
  Result<std::size_t> acquire_signal_source()
      LINKSPAN_EXCLUDES(signal_sources_mutex_, windows_->mutex);
  Result<std::shared_ptr<TransferState>> copy(std::uint64_t peer, Op op,
                                              const WindowRegions& regions,
                                              const Block& block) override;
  void serve_windows(transport::PollHint& next) LINKSPAN_EXCLUDES(windows_->mutex);
  /// Waits for the orders of kernels. pending: some are left at the deadline.
  Status finish_windows(base::Deadline deadline) LINKSPAN_EXCLUDES(windows_->mutex);
  /// Ends the windows onto `peer`, or all windows if it is nullopt.
  void end_windows(std::optional<std::uint64_t> peer, const Status& why)
      LINKSPAN_EXCLUDES(windows_->mutex);
  /// Ends each wait for an answer of that peer with the status `why`.
  void end_lookups(std::uint64_t peer, const Status& why) LINKSPAN_EXCLUDES(events_mutex_);
  /// Unmaps GPU memory of the peer's regions, although the user may keep their handles.
  void unmap_regions_of(std::uint64_t peer);
  std::string greeting(const control::Session& session);
  transport::PollHint poll();
  /// Calls TransferScheduler::progress() and wakes waiters if a transfer became quiet.
  std::size_t advance(base::Time now = base::Clock::steady().now())
      LINKSPAN_REQUIRES(scheduler_.mutex);
  bool await(TransferScheduler::CloseBlocker blocker, base::Deadline deadline,
             std::optional<std::uint64_t> peer = std::nullopt) LINKSPAN_REQUIRES(scheduler_.mutex);
  Duration wait_until_next_poll(base::Time begin, base::Time now)
      LINKSPAN_REQUIRES(scheduler_.mutex);
  base::Deadline after(Duration wait) const {
    return base::Deadline::after(base::Clock::steady(), wait);
  }

  // control::SessionEvents, on the Control thread
  std::vector<control::TransportAddress> transport_addresses(bool remote) override;
  Status on_established(const std::shared_ptr<control::Session>& session) override;
  void on_up(control::Session& session) override;
  void on_disconnected(control::Session& session) override;
  void on_terminated(control::Session& session) override;
  void on_transport_message(control::Session& session, control::TransportMessage message,
                            std::span<base::Fd> fds) override;
  void on_data_connection(control::Session& session, const std::string& transport,
                          Result<base::AuthenticatedSocket> socket) override;
  Result<control::ExportedRegion> on_import_request(control::Session& session,
                                                    std::string_view name,
                                                    std::uint64_t serial) override;
  void on_set_request(control::Session& session, std::uint64_t request,
                      control::AskSet ask) override;
  void on_set_reply(control::Session& session, std::uint64_t request,
                    memory::PublishedSet set) override;
  Result<control::ExportedRegion> on_offer_import_request(control::Session& session,
                                                          std::uint64_t serial) override;
  Status on_message_frame(control::Session& session, base::Frame& frame) override;
  void on_import_reply(control::Session& session, std::uint64_t request,
                       Result<control::ExportedRegion> answer) override;
  void on_notification(control::Session& session, std::vector<std::byte> payload) override;
  void on_collect_request(control::Session& session) override;
  Result<std::string> handle_query(control::IntrospectionOp op) override;

  const base::ForkWatch fork_;
  const base::Options options_;
  const base::Log log_;
  const std::shared_ptr<base::LogQueue> log_queue_;  // also log_'s; null: lines go to stderr
  const base::Time opened_ = base::Clock::steady().now();
  control::Identity identity_;
  std::unique_ptr<cuda::Topology> topology_;  // null: no_gpu_ says why
  Status no_gpu_;
  std::unique_ptr<memory::Registry> registry_;
  Transports transports_;
  std::unique_ptr<UnregisteredBuffers> unregistered_;
  std::unique_ptr<StreamOrders> streams_;

  base::Mutex signal_sources_mutex_;  // the first window allocates; others wait for it
  const std::shared_ptr<WindowSet> windows_ = std::make_shared<WindowSet>();  // also the windows'

  base::Mutex exports_mutex_;
  // Keys of each region that the user registered, by serial; shared with threads that send them.
  std::map<std::uint64_t, std::shared_ptr<const Keys>> exports_ LINKSPAN_GUARDED_BY(exports_mutex_);

  base::Mutex sets_mutex_;  // no set is published between find_set() and the entry of a wait
  // Requests that wait for a version of a set, by peer and request.
  std::map<std::pair<std::uint64_t, std::uint64_t>, control::AskSet> set_waits_
      LINKSPAN_GUARDED_BY(sets_mutex_);

  base::Mutex drain_mutex_;           // locked while rings are drained, which keeps their order
  mutable base::Mutex events_mutex_;  // guards what the Control thread hands to users
  base::Condition event_;
  // Peers that accept() has not returned yet: id and name.
  std::deque<std::pair<std::uint64_t, std::string>> accepted_ LINKSPAN_GUARDED_BY(events_mutex_);
  std::vector<Notification> notifications_ LINKSPAN_GUARDED_BY(events_mutex_);
  // Incremented under events_mutex_: a sleeping notifications() then polls and arms bells again.
  std::atomic<std::uint64_t> event_count_{0};
  std::map<std::uint64_t, InboxUsage> inbox_usage_
      LINKSPAN_GUARDED_BY(events_mutex_);                           // of notifications_, by peer
  std::size_t inbox_bytes_ LINKSPAN_GUARDED_BY(events_mutex_) = 0;  // of all peers
  std::map<std::uint64_t, EarlyNotifications> early_ LINKSPAN_GUARDED_BY(events_mutex_);  // by peer
  // Answers to imports by serial that opener_ has not handled, by peer and serial.
  std::set<std::pair<std::uint64_t, std::uint64_t>> by_serial_ LINKSPAN_GUARDED_BY(events_mutex_);
  std::map<std::uint64_t, std::shared_ptr<Lookup>> lookups_ LINKSPAN_GUARDED_BY(events_mutex_);
  std::uint64_t last_lookup_ LINKSPAN_GUARDED_BY(events_mutex_) = 0;
  std::string address_ LINKSPAN_GUARDED_BY(events_mutex_);

  TransferScheduler scheduler_{log_, transports_};
  std::unique_ptr<control::ControlPlane> control_;
  std::unique_ptr<ProgressThread> progress_thread_;
  base::Condition quiet_;  // with scheduler_.mutex: a transfer became quiet
  std::atomic<bool> closed_{false}, reported_loopback_{false};
  std::shared_ptr<EngineImpl> self_;  // set by keep_forever()
  // Runs imports, which take milliseconds and would delay the Control thread. Last, so that it ends
  // before the members that its tasks use.
  base::Executor opener_{base::kThreadNamed<"ls-opener">};
};

}  // namespace linkspan::engine
