// transport/verbs/verbs_endpoint.hpp - the Endpoint of one peer over RDMA.
//
// On the path of a byte: post() checks the batch, and spreads its requests over the links, a
// request a block; progress() takes their completions, and sends what had no room.
// Threads: under its peer's mutex.
// Invariants: a batch ends when none of its requests is outstanding: each was acknowledged by the
// peer's device, or its queue pair was destroyed on both sides. A canceled batch ends within
// kCancelEnds, whatever the peer does: then the peer is given up.
#pragma once

#include <memory>
#include <vector>

#include "transport/verbs/incoming_links.hpp"
#include "transport/verbs/inflight_verbs_batches.hpp"
#include "transport/verbs/outgoing_link.hpp"
#include "transport/verbs/requested_access.hpp"
#include "transport/verbs/served_access.hpp"
#include "transport/verbs/verbs_transport.hpp"

namespace linkspan::transport::verbs {

class VerbsEndpoint final : public Endpoint {
 public:
  /// Times after a cancel: requests that are outstanding are fenced; the peer is given up.
  static constexpr Duration kCancelFences = std::chrono::seconds(2),
                            kCancelEnds = std::chrono::seconds(10);

  VerbsEndpoint(VerbsTransport& transport, VerbsAddress peer, Channel& channel,
                base::Deadline deadline);

  Result<Posted> post(const Batch& batch) override;
  void cancel(std::uint64_t cookie) override;
  std::size_t progress(CompletionSink& sink) override;
  PollHint poll_hint() const override;
  Explanation explain(Op op, const memory::Region& local, const Mapping& remote,
                      BatchSummary shape) const override;
  std::string describe_paths() const override { return describe_paths(nullptr); }
  Status on_message(std::uint16_t op, std::span<const std::byte> bytes,
                    std::span<base::Fd> fds) override;
  void close() override;
  void peer_terminated() override;
  bool drained() const override;

 private:
  struct LifeCycle {
    base::Deadline connect_by;
    bool met = false;  // the peer has sent a message
    bool closed = false, disconnected = false;
    Status failed{};  // why the peer was given up
  };

  struct Pace {
    std::size_t next_link = 0;  // that gets the next chain
    base::Time moved_at{};      // a request was posted or completed
    base::Time next_check{};
  };

  struct Flushes {
    FlushQueue of_peer;  // it has written to GPUs here
    FlushQueue own;      // after reads, by the batches' flush_id; 0: after all, the peer is gone
    std::uint64_t last_id = 0;
    bool asked_at_end = false, ended = false;
  };

  base::Time now() const noexcept { return transport_.options().clock->now(); }
  Status ready() const;
  Status peer_is_gone() const;
  /// Returns why no link carries anything, or OK.
  Status refused(base::Time now) const;
  /// Lists the links; those of the devices next to the memory if it is not null.
  std::string describe_paths(const MemoryKeys* memory) const;
  void pump();
  void advance(base::Time now);
  void check_canceled(base::Time now);
  Status end_of(const VerbsBatch& batch) const;
  Completion completion_of(const VerbsBatch& batch) const;
  bool is_wanted(const OutgoingLink& link) const;
  void fail_unreachable(base::Time at);
  void fail_all(const Status& why);
  // In verbs_endpoint_messages.cpp.
  Status on_opened(std::span<const std::byte> bytes);
  Status on_granted(std::span<const std::byte> bytes);
  Status on_revoke(std::span<const std::byte> bytes);
  // In verbs_endpoint_flushes.cpp.
  void advance_flushes();
  bool flush_later(VerbsBatch& batch);
  void on_flush_done(std::uint64_t id, const Status& status);
  Status on_flush(std::span<const std::byte> bytes);
  Status on_flushed(std::span<const std::byte> bytes);
  void answer_flush(std::uint64_t id, const Status& status);

  VerbsTransport& transport_;
  const VerbsAddress peer_;
  MessageQueue messages_;
  LifeCycle life_;
  IncomingLinks incoming_;
  ServedAccess served_;
  RequestedAccess requested_;
  InflightVerbsBatches batches_;
  std::vector<std::unique_ptr<OutgoingLink>> links_;
  Pace pace_;
  Flushes flushes_;
};

}  // namespace linkspan::transport::verbs
