// engine/engine_impl.hpp - what the public handles are handles of: one Engine's rooms, put
// together.
//
// It owns topology, registry, transports, TransferScheduler, ProgressThread and Control, in the
// order in which they need each other, and is the Listener of Control's Sessions.
// Threads: any thread; Listener calls come on the Control thread.
// Invariants: transports outlive endpoints and mappings; after close() answered ok nothing here
// touches the user's memory.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/fork.hpp"
#include "base/log.hpp"
#include "base/log_queue.hpp"
#include "base/options.hpp"
#include "base/task_thread.hpp"
#include "control/control_plane.hpp"
#include "cuda/topology.hpp"
#include "engine/progress_thread.hpp"
#include "engine/transfer_scheduler.hpp"
#include "engine/window.hpp"
#include "linkspan/engine.hpp"
#include "memory/descriptor.hpp"
#include "memory/registry.hpp"
#include "transport/transport.hpp"

namespace linkspan::engine {

inline constexpr std::size_t kMaxNotification = control::NotificationRing::kMaxMessage;
/// Notifications of one peer that nobody has taken yet. What comes beyond is dropped, and logged.
inline constexpr std::size_t kMaxWaitingNotifications = 65536;
inline constexpr std::size_t kMaxWaitingBytes = std::size_t{16} << 20;
inline constexpr std::size_t kMaxWaitingBytesOfAll = std::size_t{256} << 20;
inline constexpr std::size_t kMaxEarlyBytes =
    std::size_t{1} << 20;  ///< EngineImpl::EarlyNotifications, of a peer.
/// Requests of one peer that wait for a version of a set.
inline constexpr std::size_t kMaxSetWaits = 64;
/// Peers that nobody has accepted; beyond it those that are gone are forgotten.
inline constexpr std::size_t kMaxUnaccepted = 4096;

class EngineImpl final : public control::SessionEvents,
                         private WindowCopier,
                         public std::enable_shared_from_this<EngineImpl> {
 public:
  static Result<std::shared_ptr<EngineImpl>> open(const EngineOptions& options);
  ~EngineImpl();
  /// Null: a handle that names no Engine.
  static const std::shared_ptr<EngineImpl>& of(const Engine& engine) noexcept {
    return engine.impl_;
  }
  EngineImpl(const EngineImpl&) = delete;
  EngineImpl& operator=(const EngineImpl&) = delete;

  // core_memory.cpp
  Result<Region> register_memory(void* pointer, std::uint64_t bytes, const RegionOptions& options);
  Result<Region> allocate_shared(std::uint64_t bytes, const RegionOptions& options);
  Status deregister(const Region& region, Duration timeout) LINKSPAN_EXCLUDES(exports_mutex_);
  Status invalidate(const Region& region, Duration timeout) LINKSPAN_EXCLUDES(exports_mutex_);

  // core_peers.cpp
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

  // core_names.cpp
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

  // core_transfers.cpp
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
  // core.cpp
  Result<Explanation> explain(std::uint64_t peer, Op op, const Region& local,
                              const RemoteRegion& remote, transport::Shape shape);
  // core_windows.cpp
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
  /// Until it is quiet.
  Status finish(const Result<Transfer>& transfer);
  Status wait(TransferState& transfer, Duration timeout);
  Status cancel(TransferState& transfer);
  Status attach_completion_queue(TransferState& transfer,
                                 std::shared_ptr<CompletionQueueState> queue, std::uint64_t cookie);
  std::size_t progress();
  // core_report.cpp
  std::string dump() LINKSPAN_EXCLUDES(events_mutex_);
  std::string metrics();
  Status close(Duration timeout);
  /// Never ends: something is not quiet, and nobody is left who would wait for it.
  void keep_forever() { self_ = shared_from_this(); }
  /// This process is a child of the one that opened it: nothing here may be touched.
  bool forked() const noexcept { return fork_.forked(); }

 private:
  Status end_region(const Region& region, Duration timeout, bool immediately)
      LINKSPAN_EXCLUDES(exports_mutex_);
  std::shared_ptr<const Keys> keys_of(std::uint64_t serial) LINKSPAN_EXCLUDES(exports_mutex_);
  /// Notifications of a peer that Engine::notifications() has not taken.
  struct InboxUsage {
    std::size_t count = 0, bytes = 0, dropped = 0;
    std::size_t uncounted = 0;  // they came where the scheduler's lock may not be taken
  };
  /// Notifications of a peer that came with a write before others, sent earlier, which go over its
  /// control connection.
  struct EarlyNotifications {
    struct Each {
      std::uint64_t after;  // so many of these others
      std::vector<std::byte> payload;
    };
    std::uint64_t received = 0;  // of these others
    std::vector<Each> waiting;
    std::size_t bytes = 0;  // that they cost
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
  /// A question to a peer, with what it answers: a region or a set.
  struct Lookup {
    base::Deadline deadline;
    std::uint64_t peer = 0, id = 0;
    std::optional<Status> answer{};
    std::shared_ptr<ImportedRegion> region{};  // also the user's
    memory::PublishedSet set{};
    bool opening = false;  // a region has come: a second one is not looked at
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
  bool has_ended();  ///< Its Control thread has, in the time that it is given.
  /// Whether we asked for that answer, and this is the first.
  bool expects(std::uint64_t peer, std::uint64_t request) LINKSPAN_EXCLUDES(events_mutex_);
  Result<Region> admit(Result<std::shared_ptr<const memory::Registration>> registration);
  /// Of whom an answer came; the Session may be gone when it is worked off.
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
    transport::Shape size;
  };
  Result<Planned> plan(const TransferEndpoints& between, const UserShape& shape) const;
  Result<Planned> plan(TransferEndpoints& between, const UserShape& shape,
                       const TransferOptions& options);
  Status check_path(const TransferEndpoints& between, const transport::Shape& size,
                    const std::string& required);
  /// Under way; its user's stream is not held yet.
  struct Started {
    std::shared_ptr<TransferState> transfer;  // also the TransferScheduler's
    ResolvedStreams streams;
  };
  /// Of a transfer that has its between, its plan and the path that is required.
  Result<Started> start(std::shared_ptr<TransferState> transfer, transport::Shape size,
                        const TransferOptions& options);
  /// Of one whose path has not been held against the one required yet.
  Result<Transfer> post(std::shared_ptr<TransferState> transfer, transport::Shape size,
                        const TransferOptions& options);
  Result<Transfer> to_handle(Result<Started> started);
  Result<Explanation> explain(const TransferEndpoints& between, transport::Shape shape);
  /// Whether the import counts, for metrics() and dump(), and passes it on.
  Result<std::shared_ptr<ImportedRegion>> counted(const PeerIdentity& peer,
                                                  Result<std::shared_ptr<ImportedRegion>> region);
  Result<std::size_t> acquire_signal_source()
      LINKSPAN_EXCLUDES(signal_sources_mutex_, windows_->mutex);
  Result<std::shared_ptr<TransferState>> copy(std::uint64_t peer, Op op,
                                              const WindowRegions& regions,
                                              const Block& block) override;
  void serve_windows(transport::PollHint& next) LINKSPAN_EXCLUDES(windows_->mutex);
  /// Waits for what kernels have ordered. pending: there still is some.
  Status finish_windows(base::Deadline deadline) LINKSPAN_EXCLUDES(windows_->mutex);
  /// Of that peer; of all, when there is none.
  void end_windows(std::optional<std::uint64_t> peer, const Status& why)
      LINKSPAN_EXCLUDES(windows_->mutex);
  /// Ends each wait for an answer of that peer with `why`.
  void end_lookups(std::uint64_t peer, const Status& why) LINKSPAN_EXCLUDES(events_mutex_);
  void unmap_regions_of(std::uint64_t peer);
  std::string greeting(const control::Session& session);
  transport::PollHint poll();
  /// The TransferScheduler's progress(), told to who waits.
  std::size_t advance(base::Time now = base::Clock::steady().now())
      LINKSPAN_REQUIRES(scheduler_.mutex);
  bool await(TransferScheduler::CloseBlocker blocker, base::Deadline deadline,
             std::optional<std::uint64_t> peer = std::nullopt) LINKSPAN_REQUIRES(scheduler_.mutex);
  Duration wait_until_next_poll(base::Time begin, base::Time now)
      LINKSPAN_REQUIRES(scheduler_.mutex);
  base::Deadline after(Duration wait) const {
    return base::Deadline::after(base::Clock::steady(), wait);
  }

  // control::SessionEvents
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
  const std::shared_ptr<base::LogQueue> log_queue_;  // also log_'s; none: lines go to stderr
  const base::Time opened_ = base::Clock::steady().now();
  control::Identity identity_;
  std::unique_ptr<cuda::Topology> topology_;  // null: no_gpu_ says why
  Status no_gpu_;
  std::unique_ptr<memory::Registry> registry_;
  Transports transports_;
  std::unique_ptr<UnregisteredBuffers> unregistered_;
  std::unique_ptr<StreamOrders> streams_;

  base::Mutex signal_sources_mutex_;  // of the first window, before the next asks for one
  const std::shared_ptr<WindowSet> windows_ = std::make_shared<WindowSet>();  // also the windows'

  base::Mutex exports_mutex_;
  // Of each region that the user registered, by serial; shared with who sends them.
  std::map<std::uint64_t, std::shared_ptr<const Keys>> exports_ LINKSPAN_GUARDED_BY(exports_mutex_);

  base::Mutex sets_mutex_;  // none is published between the look and the wait
  // Peers that wait for a version, with their requests.
  std::map<std::pair<std::uint64_t, std::uint64_t>, control::AskSet> set_waits_
      LINKSPAN_GUARDED_BY(sets_mutex_);

  base::Mutex drain_mutex_;           // held by who takes what lies in rings: so it keeps its order
  mutable base::Mutex events_mutex_;  // of what the Control thread hands to users
  base::Condition event_;
  // Peers that accept() has not given out yet: id and name.
  std::deque<std::pair<std::uint64_t, std::string>> accepted_ LINKSPAN_GUARDED_BY(events_mutex_);
  std::vector<Notification> notifications_ LINKSPAN_GUARDED_BY(events_mutex_);
  // Grows under that mutex: who sleeps is to look, and ask for bells, anew.
  std::atomic<std::uint64_t> event_count_{0};
  std::map<std::uint64_t, InboxUsage> inbox_usage_
      LINKSPAN_GUARDED_BY(events_mutex_);                           // of these, by peer
  std::size_t inbox_bytes_ LINKSPAN_GUARDED_BY(events_mutex_) = 0;  // of all
  std::map<std::uint64_t, EarlyNotifications> early_ LINKSPAN_GUARDED_BY(events_mutex_);  // by peer
  // Answers by serial that the opener has not come to, by peer and serial.
  std::set<std::pair<std::uint64_t, std::uint64_t>> by_serial_ LINKSPAN_GUARDED_BY(events_mutex_);
  std::map<std::uint64_t, std::shared_ptr<Lookup>> lookups_ LINKSPAN_GUARDED_BY(events_mutex_);
  std::uint64_t last_lookup_ LINKSPAN_GUARDED_BY(events_mutex_) = 0;
  std::string address_ LINKSPAN_GUARDED_BY(events_mutex_);

  control::ControlPlane* control_raw_ = nullptr;  // for the TransferScheduler, which is made before
  TransferScheduler scheduler_{log_, control_raw_, transports_};
  std::unique_ptr<control::ControlPlane> control_;
  std::unique_ptr<ProgressThread> progress_thread_;
  base::Condition quiet_;  // with the TransferScheduler's mutex: some transfer became quiet
  std::atomic<bool> closed_{false}, reported_loopback_{false};
  std::shared_ptr<EngineImpl> self_;  // of stay()
  // Last: what takes milliseconds and would keep the Control thread from hearing of a death.
  base::TaskThread opener_;
};

}  // namespace linkspan::engine
