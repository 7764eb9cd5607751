// transport/channel.hpp - messages between the two ends of a transport, beside its own wire.
//
// control implements it over the peer's control connection. A transport uses it to ask the peer to
// execute a copy that only the peer can map, to fence a cancel, or to agree on a rendezvous,
// without including control. Incoming messages reach Endpoint::on_message.
// Threads: send() and fail_peer() under its peer's mutex; they queue and never block. The
// other functions: any thread.
// Invariants: messages arrive whole and in order, or the peer is disconnected.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/fd.hpp"
#include "linkspan/status.hpp"

namespace linkspan::transport {

using SessionKey = std::span<const std::byte, 32>;

/// Identifies the process of a peer on this host; a remote peer has neither pid nor pidfd.
struct PeerProcess {
  std::int64_t pid = 0;           ///< By SO_PEERCRED. 0: unknown here.
  int pidfd = -1;                 ///< Borrowed; valid as long as the Channel. -1: none.
  bool same_user = true;          ///< False for a remote peer, whose user is not known.
  std::uint64_t incarnation = 0;  ///< Identifies the Engine there. 0: unknown here.
};

class Channel {
 public:
  virtual ~Channel() = default;
  /// Queues a message. no_resource: the queue is full, try again later. unsupported: fds cannot go
  /// to a remote peer.
  virtual Status send(std::uint16_t op, std::span<const std::byte> bytes,
                      std::span<base::Fd> fds) = 0;
  /// Returns true if this side connected to the other; it may then call open_data_connection().
  virtual bool connects() const noexcept = 0;
  /// Makes another connection to the peer, for the transport alone. Both ends get it by
  /// Endpoint::on_data_connection(). unsupported: the other side has to open it, or the
  /// peer is not reached by TCP.
  virtual Status open_data_connection() = 0;
  /// Reports that the wire is broken and the peer has to be met again. The peer is soon
  /// disconnected, for all transports.
  virtual void fail_peer(const Status& why) = 0;
  /// Any thread. Makes the engine call Endpoint::progress() soon, for work that came by no call of
  /// the engine. Takes no lock under which an Endpoint is called.
  virtual void request_progress() {}
  /// Returns a key that is new for each incarnation of the peer; it authenticates the data sockets
  /// of a wire.
  virtual SessionKey session_key() const noexcept = 0;
  /// Returns the peer as this process's kernel names it. The number may be wrong (another pid
  /// namespace): read a secret back from that process before touching it.
  virtual PeerProcess process() const noexcept = 0;
  virtual std::string_view peer_name() const noexcept = 0;  ///< For logs and errors.
  /// Passes a notification that came with a completed batch to this side's user, after the first
  /// `after` notifications of the control connection. Takes no lock under which an Endpoint is
  /// called.
  virtual void deliver_notification(std::vector<std::byte> notification, std::uint64_t after) = 0;
};

}  // namespace linkspan::transport
