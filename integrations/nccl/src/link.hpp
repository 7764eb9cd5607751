// nccl/link.hpp - the connection of this process's senders to the receivers of another process.
//
// One for all comms to that process, so they share its data connections. A message goes as a write
// into the receiver's memory with a notification behind it; a small one lies in the notification.
// Threads: externally synchronised (Net::mutex_).
// Invariants: nothing blocks; what is not there yet is asked for again.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "integrations/nccl/src/frame.hpp"
#include "linkspan/engine.hpp"

namespace linkspan::nccl {

class Link {
 public:
  /// The name under which a process publishes what small messages are written to.
  static constexpr const char* kMailbox = "nccl.mailbox";
  /// Returns the name under which a receiver publishes a region.
  static std::string name_of(std::uint64_t region) { return "nccl." + std::to_string(region); }

  /// Begins to connect. A small message is sent behind the bytes of `mailbox`, which mean nothing.
  Link(Engine& engine, const std::string& address, Region mailbox, const Duration& timeout);

  ~Link();  ///< Ends the connection. Requires that all transfers have ended.
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  std::uint64_t peer() const noexcept { return peer_.id(); }  ///< 0: not connected.
  Duration timeout() const noexcept { return timeout_; }      ///< Of a message.
  /// Goes on connecting. Returns whether it is connected.
  Result<bool> connected();
  /// Returns an error once the process there is gone. Requires connected().
  Status alive() const;
  /// Returns whether the process there is gone, or has not been met in time: for what begins now a
  /// new Link may meet it.
  bool has_ended() const;
  /// Sends a frame without data. Requires connected(). no_resource: again later.
  Status send(const Frame& frame) const { return peer_.notify(bytes_of(frame)); }
  /// Sends a message of at most kSmallBytes behind its frame.
  Result<Transfer> send_small(const Frame& frame, std::span<const std::byte> message);
  /// Writes a message to the room of a receive. pending: the region is being looked up.
  Result<Transfer> write(const Region& local, std::uint64_t offset, const Frame& room,
                         const Frame& landed);

  /// Maximum of small messages before their receives, of all comms together: 2 MiB. The receivers'
  /// Engine keeps 16 MiB of a peer's notifications and 256 MiB of all peers', and drops others.
  static constexpr std::uint64_t kMaxAhead = 512;
  std::uint64_t ahead = 0;  ///< How many there are.

 private:
  TransferOptions options(std::span<const std::byte> notification) const;

  const Duration timeout_;
  Region mailbox_;
  Future<Peer> meeting_;
  Peer peer_;
  Future<RemoteRegion> mailbox_there_;
  std::map<std::uint64_t, Future<RemoteRegion>> regions_;  // of the receivers, by number
};

}  // namespace linkspan::nccl
