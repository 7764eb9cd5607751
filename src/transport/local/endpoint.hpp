// transport/local/endpoint.hpp - one peer of this host: batches in flight, and copies for it.
//
// On the path of a byte: post() checks, asks route(), turns blocks into addresses and passes them
// to a copier; progress() polls the copiers. If only the peer reaches both memories, this side
// requests the copy by message (`offer` once per region, then `execute`); likewise it runs the
// peer's requests. If neither side reaches both, the batch goes in chunks through bounce memory
// that both map. Each chunk is a bounce step of two phases, one run here and one by the peer
// (endpoint_bounce.cpp). Small batches with private memory of the peer take two copies of this side
// instead (endpoint_slot.cpp).
// Threads: one thread at a time for each Endpoint, under its peer's mutex, and for all of a
// transport, which share copiers, under SharedCopiers::mutex; queue_retract() and
// unmapped_here() any thread.
// Invariants: an in-flight batch ends only when its copier is quiet, or the peer has reported the
// end or has terminated.
#pragma once

#include <atomic>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/recycled.hpp"
#include "transport/local/completion_flags.hpp"
#include "transport/local/inflight_batch.hpp"
#include "transport/local/known_pairs.hpp"
#include "transport/local/wire.hpp"

namespace linkspan::transport::local {

class LocalEndpoint final : public Endpoint {
 public:
  LocalEndpoint(LocalTransport& transport, const LocalAddress& peer, Channel& channel,
                unsigned copy_queue_index, base::Deadline deadline);
  LocalEndpoint(const LocalEndpoint&) = delete;
  LocalEndpoint& operator=(const LocalEndpoint&) = delete;
  ~LocalEndpoint() override;

  Result<Posted> post(const Batch& batch) override;
  bool copy_as_caller(CallersCopy copy) override;
  void cancel(std::uint64_t cookie) override;
  std::size_t progress(CompletionSink& sink) override;
  PollHint poll_hint() const override;
  Explanation explain(Op op, const memory::Region& local, const Mapping& remote,
                      BatchSummary shape) const override;
  std::string describe_paths() const override;
  Status on_message(std::uint16_t op, std::span<const std::byte> bytes,
                    std::span<base::Fd> fds) override;
  void stop_serving() override { serves_ = false; }
  void close() override;
  void peer_terminated() override;
  /// Returns true once the peer's process and all copies here for it have ended.
  bool drained() const override { return terminated_ && for_peer_ == 0; }

  /// Any thread. Queues a message that our region is retracted. Returns false if no peer is left.
  bool queue_retract(std::uint64_t serial, bool revoke_immediately)
      LINKSPAN_EXCLUDES(retract_mutex_);
  /// Any thread. Records that nothing here maps the peer's region any more. The peer gets a message
  /// if it waits for that.
  void unmapped_here(std::uint64_t serial) LINKSPAN_EXCLUDES(retract_mutex_);
  /// Under SharedCopiers::mutex. Returns whether a batch copies the peer's region with others'.
  bool is_joined(std::uint64_t serial) const;
  std::uint64_t peer_incarnation() const noexcept { return peer_.incarnation; }
  std::string peer_name() const { return std::string(channel_.peer_name()); }

 private:
  /// Limit of offers whose keys are being opened. Each precedes the first request that uses it, and
  /// a peer has at most Capabilities::max_inflight requests.
  static constexpr std::size_t kMaxOpening = 512;
  /// Limit of bounce steps in flight, which is beside that of batches.
  static constexpr std::size_t kMaxBounceSteps = 64;

  RouteFacts facts(Op op, const PublishedRegion& local, const ImportedMemory& remote,
                   const LocalPath& path, BatchSummary shape, bool for_peer) const;
  Status ready() const;
  /// Checks a pair of a batch and updates the path of its Mapping.
  Status check(Op op, const BatchPair& pair) const;
  Status begin(LocalInflightBatch& inflight, const PublishedRegion& local, const LocalPath& path,
               CheckedShape shape, const Batch& batch = {},
               std::optional<cuda::PooledEvent>* event = nullptr);
  static bool is_for_caller(const LocalInflightBatch& inflight);
  static bool is_sealed(const LocalInflightBatch& inflight);
  std::optional<PathTaken> copy_at_once(const Batch& batch, const LocalPath& path,
                                        CheckedShape& shape)
      LINKSPAN_REQUIRES(transport_.copiers.mutex);
  Status request_copy(PeerRequest& request, Op op, const PublishedRegion& local,
                      std::uint64_t remote_serial, const BatchShape& shape);
  Status share_completion_flags();
  bool poll_completion_flag(PeerRequest& request);
  void release_completion_flag(PeerRequest& request);
  void expect_end(PeerRequest& request, copy::Method method, copy::Link link, std::uint64_t bytes);
  static bool touches_private_memory(const LocalInflightBatch& inflight);
  Status start_some(LocalInflightBatch& inflight, const StreamDependencies& streams = {},
                    std::optional<cuda::PooledEvent>* event = nullptr);
  void advance(LocalInflightBatch& inflight) LINKSPAN_REQUIRES(transport_.copiers.mutex);
  void open_offer(LocalInflightBatch& inflight, OfferedRegion& offer);
  bool report(LocalInflightBatch& inflight, CompletionSink& sink);
  bool report_to_peer(LocalInflightBatch& inflight, CopyForPeer& role);
  void send_pending() LINKSPAN_EXCLUDES(retract_mutex_);
  std::optional<Duration> wait_to_send() const LINKSPAN_EXCLUDES(retract_mutex_);
  bool send_retract(std::uint64_t serial, bool revoke_immediately);
  bool send_retracted(std::uint64_t serial);
  Status send(LocalMessage message, std::span<const std::byte> bytes, std::span<base::Fd> fds = {});
  Status may_copy_across() const;
  /// Returns OK, or why process_vm_readv does not reach the peer.
  Status cross_process() const;
  // endpoint_join.cpp
  void join(LocalInflightBatch& inflight, const Batch& batch, const LocalPath& path,
            BatchSummary& size);
  void join_alike(LocalInflightBatch& inflight, const Batch& batch, const LocalPath& path,
                  BatchSummary& size, std::size_t count);
  void join_lists(LocalInflightBatch& inflight, const Batch& batch, const LocalPath& path,
                  BatchSummary& size);
  bool is_for_kernel(const LocalInflightBatch& inflight, const LocalPath& path,
                     const BatchSummary& all) const;
  bool can_join(Op op, const BatchPair& pair, const LocalPath& path) const;
  std::span<const KnownPair> known_pairs(const Batch& batch, const LocalPath& path,
                                         std::size_t count);
  // endpoint_bounce.cpp
  void start_bounce(LocalInflightBatch& inflight, const Route& chosen);
  void reroute_bounce(LocalInflightBatch& inflight, const Status& why);
  void add_steps(LocalInflightBatch& parent, BouncedBatch& bounced);
  void add_step(LocalInflightBatch& parent, BouncedBatch& bounced, unsigned chunk);
  void start_phase(LocalInflightBatch& inflight, const BounceStep& step);
  bool advance_phase(LocalInflightBatch& inflight);
  void finish_step(const Status& end, const BounceStep& step);
  PollHint bounce_poll_hint(const LocalInflightBatch& parent, const BouncedBatch& bounced,
                            base::Time now) const;
  const cuda::Device* own_device(const PublishedRegion& local) const;
  // endpoint_slot.cpp
  Status begin_through_slot(LocalInflightBatch& inflight, const LocalPath& path,
                            copy::Method method, std::span<const Block> blocks, bool caller_copies);
  static bool take_second_copy(LocalInflightBatch& inflight);
  copy::Ticket ticket_across(std::uint64_t id) const LINKSPAN_EXCLUDES(transport_.copiers.mutex);

  Status on_offer(std::span<const std::byte> bytes, std::span<base::Fd> fds);
  Status on_execute(std::span<const std::byte> bytes);
  Status on_executed(std::span<const std::byte> bytes);
  Status on_cancel(std::span<const std::byte> bytes);
  Status on_retract(std::span<const std::byte> bytes);
  Status on_retracted(std::span<const std::byte> bytes);
  Status on_completion_flags(std::span<base::Fd> fds);

  LocalTransport& transport_;
  const LocalAddress peer_;
  Channel& channel_;
  const unsigned copy_queue_index_;
  copy::ProcessProof proof_;    // because pids are wrong across pid namespaces
  const Status cross_process_;  // at connect; cross_process() is newer
  bool serves_ = true, closed_ = false, terminated_ = false;
  base::Time last_request_due_{};  // the peer runs requests one after the other
  InflightBatches inflight_;
  std::size_t ours_ = 0, steps_ = 0, for_peer_ = 0;  // counts of inflight_
  KnownPairs known_pairs_;                           // of the last transfer that joined pairs
  std::uint64_t last_request_id_ = 0, slot_batches_ = 0;
  // By GPU; null: host memory.
  std::map<const cuda::Device*, std::shared_ptr<BounceBuffer>> bounce_buffers_;
  Status gpu_bounce_buffer_;                           // why there is no GPU bounce buffer
  std::map<std::uint64_t, std::string> unopened_;      // by our serial: why the peer cannot map it
  std::set<std::uint64_t> offered_;                    // our serials whose key the peer has
  std::unique_ptr<CompletionFlags> completion_flags_;  // null: no request yet
  std::unique_ptr<CompletionFlagsView> peers_completion_flags_;     // null: the peer has sent none
  std::map<std::uint64_t, std::shared_ptr<OfferedRegion>> offers_;  // by the peer's serial
  // The number of offers that are not open yet. Shared with the tasks that open them, which may
  // outlive the Endpoint.
  const std::shared_ptr<std::atomic<std::size_t>> opening_ =
      std::make_shared<std::atomic<std::size_t>>(0);
  // The peer's serials to be unmapped at once, although batches still use them here.
  std::set<std::uint64_t> unmap_pending_;

  mutable base::Mutex retract_mutex_;
  std::deque<std::pair<std::uint64_t, bool>> retracts_ LINKSPAN_GUARDED_BY(retract_mutex_);
  // The peer's serials for which it waits for `retracted`: those still mapped here, and those to be
  // answered. An answer that does not fit into the channel is retried.
  std::set<std::uint64_t> retracted_by_peer_ LINKSPAN_GUARDED_BY(retract_mutex_);
  std::set<std::uint64_t> retracted_replies_ LINKSPAN_GUARDED_BY(retract_mutex_);
  std::atomic<bool> any_queued_{false};        // retracts_ or retracted_replies_ may have entries
  std::atomic<bool> retracts_refused_{false};  // set by peer_terminated()
};

}  // namespace linkspan::transport::local
