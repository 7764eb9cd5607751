// control/session_keys.hpp - the keys of a session over TCP, and the MACs by which each side shows
// that it knows the shared secret.
//
// session key = HMAC-SHA256(secret, label, both hellos and the incarnations of their Engines). A
// hello that was changed in transit yields another key. Each derived key has a label of its own, so
// no message of one side is a valid answer of the other, or of another session. Without a secret (a
// local peer, `insecure`) the key is derived from an empty one and only separates sessions.
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/frame_authenticator.hpp"

namespace linkspan::control {

enum class Side : std::uint8_t { connector, acceptor };
constexpr Side other(Side side) noexcept {
  return side == Side::connector ? Side::acceptor : Side::connector;
}

/// The first frame of one side.
struct SignedHello {
  std::span<const std::byte> hello;  ///< The payload of its frame.
  std::uint64_t incarnation = 0;
};

Result<base::MacKey> session_key(std::span<const std::byte> secret, const SignedHello& connector,
                                 const SignedHello& acceptor);
/// Returns the MAC by which `side` shows that it knows the key.
Result<base::MacKey> auth_mac(const base::MacKey& key, Side side);
/// Returns the keys by which `side` authenticates its frames and verifies the other's.
Result<base::MacKeys> mac_keys_of(const base::MacKey& key, Side side);
/// Returns the key of a data connection, derived from the session's key, the transport and the
/// number.
Result<base::MacKey> data_connection_key(const base::MacKey& session, std::string_view transport,
                                         std::uint64_t number);

}  // namespace linkspan::control
