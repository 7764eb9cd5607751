// transport/nccl_net/endpoint.hpp - one peer behind a network plugin: writes and reads out of
// messages that are sent and received in order.
//
// On the path of a byte: post() checks and asks the peer by the Channel. Of a write: the peer
// checks, orders the receives in one of its flows and answers `clear`; then this side orders the
// sends. Of a read: this side orders the receives and asks, the peer orders the sends. So the
// receives of a flow stand in the order in which the peer hears of them, and the sends follow it.
// Either ends with the peer's `ended`, which says how it went there: its memory is quiet then.
// Threads: under the scheduler's lock. The flows are the transport's thread's.
// Invariants: a batch ends when its order has ended and the peer has said so or is gone; who
// cancels or refuses sends empty messages, so each receive gets its send. A batch that was canceled
// ends within kCancelEnds, whatever else the peer does: then all flows are broken and the peer is
// given up. A transfer of the peer's ends as ConnectionGroup's do by TCP (tcp/wire.hpp): its flow
// is broken, and the peer's next transfer takes another.
#pragma once

#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/batch.hpp"
#include "transport/nccl_net/message_type.hpp"
#include "transport/nccl_net/nccl_net_transport.hpp"

namespace linkspan::transport::nccl_net {

class NcclNetEndpoint final : public Endpoint {
 public:
  /// Of a batch since its cancel.
  static constexpr Duration kCancelEnds = std::chrono::seconds(10);
  /// Of a write of the peer's without a message; of a transfer of its whose region is deregistered:
  /// without a message, the same where the region is invalidated, and in all.
  static constexpr Duration kMaxStall = std::chrono::seconds(60),
                            kMaxStallRetracted = std::chrono::seconds(10),
                            kMaxStallAtOnce = std::chrono::seconds(1),
                            kMaxRetracted = std::chrono::seconds(30);

  NcclNetEndpoint(NcclNetTransport& transport, const Address& peer, Channel& channel,
                  base::Deadline deadline);
  NcclNetEndpoint(const NcclNetEndpoint&) = delete;
  NcclNetEndpoint& operator=(const NcclNetEndpoint&) = delete;
  ~NcclNetEndpoint() override;

  Status post(const Batch& batch) override;
  void cancel(std::uint64_t cookie) override;
  std::size_t progress(CompletionSink& sink) override;
  PollHint poll_hint() const override;
  Explanation explain(Op op, const memory::Region& local, const Mapping& remote,
                      BatchSummary shape) const override;
  std::string describe_paths() const override;
  Status on_message(std::uint16_t op, std::span<const std::byte> bytes,
                    std::span<base::Fd> fds) override;
  std::vector<Served> served() const override;
  void close() override;
  void peer_terminated() override;
  bool drained() const override;

 private:
  /// Flows of an Endpoint at once, one way: two GPUs of eight each, and their hosts, need 81.
  static constexpr std::size_t kMaxQueues = 128;

  struct Span {
    std::uint64_t offset = 0, bytes = 0;
  };
  using Spans = std::vector<Span>;

  /// Of ours, or for the peer.
  struct InflightBatch {
    std::uint64_t id = 0;  // the asker's
    std::uint64_t cookie = 0;
    Op op = Op::write;  // the asker's
    RegionUse use;
    Spans spans;  // of the memory here; until they are ordered
    const WireMapping* remote = nullptr;
    std::shared_ptr<WorkRequest> work;  // also the flow's; null: not yet, or refused
    bool canceled = false, ended_by_peer = false;
    base::Time canceled_at{};
    Status end;  // for the peer: as it was refused; ours: what it has answered
    // For the peer: its order's, which is also in the maps; how many messages of it were done and
    // since when; since when its region is known to be deregistered.
    std::shared_ptr<WorkQueue> queue;
    std::uint64_t seen = 0;
    base::Time moved_at{};
    std::optional<base::Time> retracted_since{};
  };
  /// One way.
  template <class Kind>
  struct QueueEntry {
    std::shared_ptr<Kind> queue;  // also the thread's
    GpuUuid theirs{};
    bool announced = false;                           // of those that we opened: its handle
    bool reported = false, reported_by_peer = false;  // that it is broken
  };
  using Receives = std::map<std::uint32_t, QueueEntry<ReceiveQueue>>;  // by our numbers
  using Sends = std::map<std::uint32_t, QueueEntry<SendQueue>>;        // by the peer's

  base::Time now() const noexcept { return transport_.options().clock->now(); }
  Status ready() const;
  void fail(const Status& why);
  void check_bounds();
  static Status stall_status(InflightBatch& inflight, base::Time now);
  std::shared_ptr<WorkRequest> make_work(const InflightBatch& inflight) const;
  Result<Receives::iterator> receive_queue(const cuda::Device* ours, const GpuUuid& theirs);
  static base::Deadline connect_by();  // of a flow that begins now
  void enqueue(MessageType type, const flatbuffers::FlatBufferBuilder& out);
  void flush();
  void report_queues();
  static bool has_ended(const InflightBatch& inflight);
  bool is_over(const InflightBatch& inflight) const;
  Status end_of(const InflightBatch& inflight) const;
  void report_end(const InflightBatch& inflight);
  InflightBatch* find(std::list<InflightBatch>& batches, std::uint64_t id);

  // endpoint_messages.cpp
  Status on_open(std::span<const std::byte> bytes);
  Status on_listening(std::span<const std::byte> bytes);
  Status on_broken(std::span<const std::byte> bytes);
  Status on_write(std::span<const std::byte> bytes);
  Status on_clear(std::span<const std::byte> bytes);
  Status on_read(std::span<const std::byte> bytes);
  Status on_cancel(std::span<const std::byte> bytes);
  Status on_ended(std::span<const std::byte> bytes);
  template <class Request>
  Result<InflightBatch> on_request(const Request& wire, Op op);

  NcclNetTransport& transport_;
  const Address peer_;
  Channel& channel_;
  const std::uint64_t max_message_;  // bytes of a message
  bool closed_ = false, disconnected_ = false;
  Status failed_;  // the peer is given up
  base::Time next_check_{};
  std::uint64_t last_id_ = 0;
  std::uint32_t last_queue_ = 0;
  std::list<InflightBatch> own_batches_, peer_batches_;
  Receives receives_;
  Sends sends_;
  struct QueuedMessage {
    MessageType type;
    std::vector<std::byte> bytes;
  };
  std::deque<QueuedMessage> outbox_;
};

}  // namespace linkspan::transport::nccl_net
