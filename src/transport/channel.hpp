// transport/channel.hpp - what a transport may say to its peer, beside its own wire.
//
// control implements it over the peer's control connection; so a transport can ask the peer to
// execute a copy that only the peer can map, fence a cancel, or agree on a rendezvous, and never
// includes control. What arrives comes to Endpoint::on_message.
// Threads: send() and give_up() under the scheduler's lock; they queue and never block. The rest
// any thread.
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

/// A peer of this host; a remote one has neither.
struct PeerProcess {
  std::int64_t pid = 0;           ///< By SO_PEERCRED. 0: unknown here.
  int pidfd = -1;                 ///< A loan, lives as long as the Channel. -1: none.
  bool same_user = true;          ///< A remote one's user is not known: false.
  std::uint64_t incarnation = 0;  ///< Of the Engine there. 0: unknown here.
};

class Channel {
 public:
  /// Whole and in order, or the peer is lost. no_resource: the queue is full, ask again later.
  /// unsupported: fds, to a remote peer.
  virtual Status send(std::uint16_t op, std::span<const std::byte> bytes,
                      std::span<base::Fd> fds) = 0;
  /// This side has connected to the other and may open_data_connection().
  virtual bool connects() const noexcept = 0;
  /// Makes another connection to the peer, for the transport alone:
  /// DataConnectionSink::on_data_connection() at both ends. unsupported: the other side is to do
  /// it, or the peer is reached by none.
  virtual Status open_data_connection() = 0;
  /// Its wire is broken and the peer has to be met again: soon it is lost, for all transports.
  virtual void fail_peer(const Status& why) = 0;
  /// Fresh for each incarnation of the peer: authenticates the data sockets of a wire.
  virtual SessionKey session_key() const noexcept = 0;
  /// The peer as this process's kernel names it; its number may lie (another pid namespace), so
  /// nothing is done to it before a secret was read back from it.
  virtual PeerProcess process() const noexcept = 0;
  virtual std::string_view peer_name() const noexcept = 0;  ///< For people: logs and errors.
  /// Hands what the peer has sent with a batch that has landed to this side's user, behind the
  /// first `after` notifications of the control connection. Takes no lock under which an Endpoint
  /// is called.
  virtual void deliver_notification(std::vector<std::byte> notification, std::uint64_t after) = 0;

 protected:
  ~Channel() = default;
};

}  // namespace linkspan::transport
