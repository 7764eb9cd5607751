// transport/nccl_net/endpoint.hpp - the Endpoint of one peer over a network plugin: builds writes
// and reads from messages that are sent and received in order.
//
// On the path of a byte: post() checks the batch and asks the peer over the Channel. Write: the
// peer checks, adds the receives to one of its queues and answers `clear`; then this side adds the
// sends. Read: this side adds the receives and asks; the peer adds the sends. So receives are
// queued in the order in which the peer learns of them, and its sends follow that order. Both end
// with the peer's `ended`, which has its result: its memory is quiet then.
// Threads: under its peer's mutex. The queues belong to the transport's thread.
// Invariants: a batch ends when its WorkRequest has ended and the peer has reported its end or is
// gone. A side that cancels or refuses sends empty messages, so each receive gets its send. A
// canceled batch ends within kCancelEnds, whatever the peer does: then all queues are broken and
// the peer is given up. A stalled transfer of the peer's ends by breaking its queue; the peer's
// next transfer takes another.
#pragma once

#include <algorithm>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "transport/batch.hpp"
#include "transport/nccl_net/nccl_net_transport.hpp"
#include "transport/nccl_net/outbox.hpp"
#include "transport/nccl_net/peer_queues.hpp"

namespace linkspan::transport::nccl_net {

class NcclNetEndpoint final : public Endpoint {
 public:
  /// Bound of a batch after its cancel.
  static constexpr Duration kCancelEnds = std::chrono::seconds(10);
  /// Bounds of the peer's transfers without a message: a write; one on a deregistered region; the
  /// same on an invalidated region. The last: total time on a deregistered region.
  static constexpr Duration kMaxStall = std::chrono::seconds(60),
                            kMaxStallRetracted = std::chrono::seconds(10),
                            kMaxStallAtOnce = std::chrono::seconds(1),
                            kMaxRetracted = std::chrono::seconds(30);

  NcclNetEndpoint(NcclNetTransport& transport, NcclNetAddress peer, Channel& channel)
      : transport_(transport),
        peer_(std::move(peer)),
        channel_(channel),
        outbox_(channel),
        queues_(transport, outbox_) {}

  Result<Posted> post(const Batch& batch) override;
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
  struct RegionSpan {
    std::uint64_t offset = 0, bytes = 0;
  };
  using Spans = std::vector<RegionSpan>;

  /// Measures for how long a request of the peer's has not moved.
  struct StallTimer {
    std::uint64_t seen = 0;                       // completed messages at the last check
    base::Time moved_at{};                        // time of the last change; none: not checked
    std::optional<base::Time> retracted_since{};  // its region was found deregistered

    void update(std::uint64_t moved, base::Time now);
    Duration still(base::Time now) const noexcept {
      return moved_at == base::Time{} ? Duration{} : now - moved_at;
    }
  };

  /// Holds the state of a batch of ours, or of a request of the peer's.
  struct NcclNetInflightBatch {
    std::uint64_t id = 0;  // the requester's
    std::uint64_t cookie = 0;
    Op op = Op::write;  // the requester's
    RegionUse use;
    Spans spans;  // of the memory here, until the WorkRequest is made
    const WireMapping* remote = nullptr;
    std::shared_ptr<WorkRequest> work;  // shared with the queue; null: not yet, or refused
    std::optional<base::Time> canceled_at{};
    bool ended_by_peer = false;
    Status end;  // peer's request: why it was refused; ours: the peer's answer
    std::shared_ptr<WorkQueue> queue;  // that of `work`, shared with the maps; not of our writes
    StallTimer stall;                  // peer's request
  };

  Status peer_is_gone() const;
  std::uint64_t max_message() const noexcept {  // bytes
    return std::min(transport_.max_message(), peer_.max_message);
  }
  base::Time now() const noexcept { return transport_.options().clock->now(); }
  Status ready() const;
  void fail(const Status& why);
  void check_bounds();
  static Status stall_status(NcclNetInflightBatch& inflight, base::Time now);
  std::shared_ptr<WorkRequest> make_work(const NcclNetInflightBatch& inflight) const;
  void begin(const NcclNetInflightBatch& inflight, MessageType type,
             const flatbuffers::FlatBufferBuilder& message);
  static bool has_ended(const NcclNetInflightBatch& inflight);
  bool is_over(const NcclNetInflightBatch& inflight) const;
  Status end_of(const NcclNetInflightBatch& inflight) const;
  void report_end(const NcclNetInflightBatch& inflight);
  NcclNetInflightBatch* find(std::list<NcclNetInflightBatch>& batches, std::uint64_t id);

  // In endpoint_messages.cpp.
  Status on_open(std::span<const std::byte> bytes);
  Status on_listening(std::span<const std::byte> bytes);
  Status on_broken(std::span<const std::byte> bytes);
  Status on_write(std::span<const std::byte> bytes);
  Status on_clear(std::span<const std::byte> bytes);
  Status on_read(std::span<const std::byte> bytes);
  Status on_cancel(std::span<const std::byte> bytes);
  Status on_ended(std::span<const std::byte> bytes);
  template <class Request>
  Result<NcclNetInflightBatch> on_request(const Request& wire, Op op);

  NcclNetTransport& transport_;
  const NcclNetAddress peer_;
  Channel& channel_;
  bool closed_ = false, disconnected_ = false;
  Status failed_;  // why the peer was given up
  base::Time next_check_{};
  std::uint64_t last_id_ = 0;
  std::list<NcclNetInflightBatch> own_batches_, peer_batches_;
  Outbox outbox_;
  PeerQueues queues_;
};

}  // namespace linkspan::transport::nccl_net
