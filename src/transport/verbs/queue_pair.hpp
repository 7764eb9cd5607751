// transport/verbs/queue_pair.hpp - an RC queue pair with its completion queue.
//
// Each direction between two peers has queue pairs of its own: one side sends requests, the other
// one answers them by its network card alone and has no completions. So either side can end what it
// started, and make a new pair, without a word about the other direction.
// On the path of a byte: what a RequestQueue posts to and polls.
// Threads: externally synchronised. The functions that change its state take milliseconds and
// belong off the lock.
// Invariants: after destroy() the device touches no memory for it any more.
#pragma once

#include <memory>

#include "transport/verbs/device.hpp"

namespace linkspan::transport::verbs {

/// Where the other end of a queue pair is.
struct QueuePairRoute {
  std::uint32_t queue_pair = 0;
  std::uint32_t psn = 0;  ///< Of the first request.
  IbvGid gid{};
  std::uint16_t lid = 0;
  IbvMtu mtu = kMtu1024;
  std::uint8_t reads = 1;  ///< RDMA READs in flight that the asked side takes.
};

class QueuePair {
 public:
  /// Makes it with room for `requests`, in the state INIT.
  static Result<std::unique_ptr<QueuePair>> create(const Rail& rail, std::uint32_t requests);
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;
  ~QueuePair() { (void)destroy(); }

  /// Makes it answer the requests of the other end.
  Status answer(const QueuePairRoute& peer, const VerbsSettings& settings);
  /// Makes it send requests, of which the first has the number `psn`.
  Status connect(const QueuePairRoute& peer, std::uint32_t psn, const VerbsSettings& settings);
  Status destroy() noexcept;

  IbvQp* qp() const noexcept { return qp_; }
  IbvCq* cq() const noexcept { return cq_; }
  std::uint32_t number() const noexcept { return qp_->qp_num; }
  const Rail& rail() const noexcept { return rail_; }
  /// Returns how many RDMA READs its device answers, or sends, at a time.
  std::uint8_t max_answered_reads() const noexcept;
  std::uint8_t max_sent_reads() const noexcept;

 private:
  explicit QueuePair(Rail rail) : rail_(std::move(rail)) {}
  Status to_init();
  Status to_rtr(const QueuePairRoute& peer, const VerbsSettings& settings);
  Status modify(IbvQpAttr& attr, int mask, const char* state);

  const Rail rail_;
  IbvCq* cq_ = nullptr;
  IbvQp* qp_ = nullptr;
};

/// Returns a random number of a first packet.
std::uint32_t random_psn();

}  // namespace linkspan::transport::verbs
