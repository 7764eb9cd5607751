// transport/nccl_net/peer_queues.hpp - the queues with one peer, in both directions.
//
// On the path of a byte: an Endpoint adds the receives and sends of its batches to these queues.
// This side opens a receive queue when two GPUs, or host memories, first need one; the peer opens
// the send queues. Each side reports what has broken, and a queue that both know to be broken is
// removed. A thread of the transport polls the queues.
// Threads: under its peer's mutex. The queues belong to the transport's thread.
// Invariants: a queue is in the map of its direction, or is ended.
#pragma once

#include <map>
#include <memory>

#include "transport/nccl_net/nccl_net_transport.hpp"
#include "transport/nccl_net/outbox.hpp"

namespace linkspan::transport::nccl_net {

class PeerQueues {
 public:
  /// Both outlive it.
  PeerQueues(NcclNetTransport& transport, Outbox& outbox)
      : transport_(transport), outbox_(outbox) {}
  PeerQueues(const PeerQueues&) = delete;
  PeerQueues& operator=(const PeerQueues&) = delete;
  ~PeerQueues();

  struct NumberedQueue {
    std::uint32_t number;              ///< The receiver's.
    std::shared_ptr<WorkQueue> queue;  ///< Shared with the map and the thread.
  };
  /// Returns a queue that receives into memory of `ours` from memory of `theirs`; null or zero:
  /// host memory. Opens one if there is none that works.
  Result<NumberedQueue> receive(const cuda::Device* ours, const GpuUuid& theirs);
  /// Returns the send queue of that number. Null: the peer has not opened it.
  std::shared_ptr<WorkQueue> send(std::uint32_t number) const;

  // Handle the peer's messages. An error is `corrupt`.
  Status on_open(std::uint32_t number, const GpuUuid& gpu);
  Status on_listening(std::uint32_t number, const Handle& handle);
  void on_broken(std::uint32_t number, bool by_receiver, const Status& why);

  /// Wakes the thread, if there is one.
  void wake();
  /// Breaks all queues, which fences their data.
  void end(const Status& why);
  /// Does the same for a peer that is gone, which reports nothing more.
  void peer_terminated(const Status& why);
  /// Reports new listeners and broken queues to the peer, and removes queues that both sides know
  /// to be broken. Called before the end of a batch that broke with its queue is reported, so that
  /// the next transfer uses another.
  void report();
  /// Returns whether report() has, or may soon have, something to report.
  bool has_reports() const;

 private:
  /// Queues of one direction, at most: two hosts of eight GPUs each need 81.
  static constexpr std::size_t kMaxQueues = 128;
  struct QueueEntry {
    std::shared_ptr<WorkQueue> queue;  // shared with the thread
    GpuUuid theirs{};
    bool announced = false;  // receive queues: its handle was sent
    bool reported = false,
         reported_by_peer = false;  // its end was sent to, or received from, the peer
  };
  using Queues = std::map<std::uint32_t, QueueEntry>;  // by the receiver's numbers

  Status add(Queues& queues, std::uint32_t number, QueueEntry entry);
  template <class Each>
  void for_each(const Each& each);

  NcclNetTransport& transport_;
  Outbox& outbox_;
  Queues receives_, sends_;
  std::uint32_t last_queue_ = 0;
  PluginThread* thread_ = nullptr;  // of transport_.threads()
};

}  // namespace linkspan::transport::nccl_net
