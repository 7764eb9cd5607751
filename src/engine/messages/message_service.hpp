// engine/messages/message_service.hpp - two-sided messages: the user's calls and the peer's frames.
//
// On the path of a byte: before the match. Registers the memory of a message and sends its offer.
// Threads: any thread; on_frame() the Control thread.
// Invariants: imports run without a PeerScheduler's mutex.
#pragma once

#include <memory>

#include "base/fd_channel.hpp"
#include "engine/directory/import_service.hpp"
#include "engine/registration/unregistered_buffers.hpp"
#include "engine/transfers/submission.hpp"

namespace linkspan::engine {

class MessageService {
 public:
  /// The arguments outlive this object. `topology` is null without a GPU.
  MessageService(const Transports& transports, UnregisteredBuffers& buffers, StreamOrders& streams,
                 const cuda::Topology* topology, PeerTable& peers, ImportService& imports,
                 const Submission& submission, ProgressThread& progress, const base::Log& log)
      : transports_(transports),
        buffers_(buffers),
        streams_(streams),
        topology_(topology),
        peers_(peers),
        imports_(imports),
        submission_(submission),
        progress_(progress),
        log_(log) {}

  /// Submits a send or a receive. Errors as Peer::send() and Peer::recv().
  Result<std::shared_ptr<TransferState>> submit(std::uint64_t peer, const MessageKind& kind,
                                                const void* data, std::uint64_t bytes,
                                                const TransferOptions& options);
  /// Handles a frame of control/exchange.hpp. An error drops the peer.
  Status on_frame(control::Session& session, base::Frame& frame);

 private:
  Status begin(const std::shared_ptr<TransferState>& transfer);

  const Transports& transports_;
  UnregisteredBuffers& buffers_;
  StreamOrders& streams_;
  const cuda::Topology* const topology_;
  PeerTable& peers_;
  ImportService& imports_;
  const Submission& submission_;
  ProgressThread& progress_;
  const base::Log& log_;
};

}  // namespace linkspan::engine
