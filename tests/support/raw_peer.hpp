// tests/support/raw_peer.hpp - a peer of an Engine that sends frames by hand and checks no rules.
//
// Threads: externally synchronised.
#pragma once

#include <optional>
#include <string>

#include "base/fd_channel.hpp"
#include "control/handshake.hpp"

namespace linkspan::test {

inline constexpr std::uint64_t kRawIncarnation = 42;

/// Connects to an Engine's address, or a path. no_resource: too many wait there to be accepted.
Result<base::Fd> socket_to(const std::string& address);
base::FdChannel connect_raw(const std::string& address);
void send_raw(base::FdChannel& channel, control::FrameOp op, std::span<const std::byte> payload,
              std::uint64_t incarnation = kRawIncarnation, std::span<base::Fd> fds = {});
/// Says hello and ready, as a process should; over TCP without a pidfd.
void greet_raw(base::FdChannel& channel);
/// Returns the next frame, within 10 s; nullopt if the Engine has closed.
std::optional<base::Frame> any_raw(base::FdChannel& channel);
/// Returns the next frame that is not of the handshake, within 10 s; nullopt if the Engine has
/// closed.
std::optional<base::Frame> next_raw(base::FdChannel& channel);

}  // namespace linkspan::test
