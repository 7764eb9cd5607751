// tests/faults/raw_peer.hpp - a client of the control connection that need not keep its rules: of
// another release, or one that says too much and reads too little.
//
// Threads: externally synchronised.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/fd_channel.hpp"
#include "control/handshake.hpp"

namespace linkspan::test {

class RawPeer {
 public:
  static constexpr std::uint64_t kIncarnation = 42;

  /// Connects to what Engine::address() says.
  explicit RawPeer(const std::string& address);
  explicit RawPeer(base::Fd socket) : channel_(std::move(socket)) {}

  std::uint16_t version = base::kProtocolVersion;  ///< Sent in every frame.

  /// Waits for room. Returns false if the other side has closed.
  bool send(std::uint16_t op, std::span<const std::byte> payload, std::uint64_t id = 7,
            std::span<base::Fd> fds = {});
  bool send(control::FrameOp op, std::span<const std::byte> payload, std::uint64_t id = 7,
            std::span<base::Fd> fds = {}) {
    return send(static_cast<std::uint16_t>(op), payload, id, fds);
  }
  /// Sends hello, over a Unix socket with a pidfd, and ready.
  bool greet(const control::Hello& hello);
  bool greet(std::span<const std::byte> hello);
  static control::Hello hello();  ///< Returns a hello of this process without transports.

  /// Returns the next frame that is not of the handshake, within 10 s; nullopt if the other side
  /// has closed.
  std::optional<base::Frame> next();
  /// Returns the Status of the next frame, which must be an error.
  Status refusal();

 private:
  base::FdChannel channel_;
};

}  // namespace linkspan::test
