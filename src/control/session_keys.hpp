// control/session_keys.hpp - the keys of a session over TCP, and how each side shows that it knows
// the secret that makes them.
//
// session key = HMAC-SHA256(secret, label, both hellos with their Engines' incarnations): who has
// changed a byte of a hello has another key. What is derived from it has a label of its own, so
// that nothing that one side says is an answer of the other's, or one of another session. Without a
// secret (a local peer, `insecure`) the same is made of none, and keeps sessions apart alone.
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

/// What one side has said first.
struct SignedHello {
  std::span<const std::byte> hello;  ///< The payload of its frame.
  std::uint64_t incarnation = 0;
};

Result<base::MacKey> session_key(std::span<const std::byte> secret, const SignedHello& connector,
                                 const SignedHello& acceptor);
/// That `side` knows the key.
Result<base::MacKey> auth_mac(const base::MacKey& key, Side side);
/// What `side` seals its frames with, and opens the other's.
Result<base::MacKeys> mac_keys_of(const base::MacKey& key, Side side);
/// Of a data connection beside the session, in the place of the session's: of that transport and
/// number.
Result<base::MacKey> data_connection_key(const base::MacKey& session, std::string_view transport,
                                         std::uint64_t number);

}  // namespace linkspan::control
