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
  /// The arguments outlive this object.
  MessageService(const EngineContext& context, UnregisteredBuffers& buffers, StreamOrders& streams,
                 PeerTable& peers, ImportService& imports, const Submission& submission)
      : context_(context),
        buffers_(buffers),
        streams_(streams),
        peers_(peers),
        imports_(imports),
        submission_(submission) {}

  /// Submits a send or a receive. Errors as Peer::send() and Peer::recv().
  Result<std::shared_ptr<TransferState>> submit(std::uint64_t peer, const MessageKind& kind,
                                                const void* data, std::uint64_t bytes,
                                                const TransferOptions& options);
  /// Handles a frame of control/exchange.hpp. An error drops the peer.
  Status on_frame(control::Session& session, base::Frame& frame);

 private:
  Status begin(const std::shared_ptr<TransferState>& transfer);

  const EngineContext& context_;
  UnregisteredBuffers& buffers_;
  StreamOrders& streams_;
  PeerTable& peers_;
  ImportService& imports_;
  const Submission& submission_;
};

}  // namespace linkspan::engine
