// control/session_authenticator.hpp - the key of one session as one side uses it: its own proof,
// the proof of the peer, and those of the data connections beside the session.
//
// Threads: externally synchronised.
// Invariants: each number of a data connection is accepted once.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "control/handshake.hpp"
#include "control/session_keys.hpp"

namespace linkspan::control {

/// Offers one more data connection of an established session; has the MAC keys of its frames.
struct DataConnectionOffer {
  DataConnectionHello hello;
  std::optional<base::MacKeys> seals;
};

class SessionAuthenticator {
 public:
  /// `seals`: frames have MAC tags. Without them offers and admissions have no keys.
  SessionAuthenticator(Side side, bool seals) : side_(side), seals_(seals) {}

  Side side() const noexcept { return side_; }
  bool seals() const noexcept { return seals_; }
  const base::MacKey& key() const noexcept { return key_; }

  /// Keeps the payload of our hello, which the key depends on, and returns it.
  const std::vector<std::byte>& sign(std::vector<std::byte> hello) {
    return our_hello_ = std::move(hello);
  }
  /// Derives the key from the secret and both hellos.
  Status derive(std::string_view secret, std::uint64_t our_incarnation, const SignedHello& theirs);

  /// Shows knowledge of a key by a MAC. Has the keys of frames that this side derives from it.
  struct KeyProof {
    base::MacKey mac;
    base::MacKeys keys;
  };
  Result<KeyProof> prove() const { return proof_of(key_, side_); }
  Result<KeyProof> expected() const { return proof_of(key_, other(side_)); }  ///< The peer's.

  Result<DataConnectionOffer> offer(std::string transport);
  /// Verifies the hello of a data connection, once the session is established. permission_denied:
  /// it is not of this session, or was admitted before.
  Result<std::optional<base::MacKeys>> admit(const DataConnectionHello& hello);

 private:
  Result<KeyProof> proof_of(const base::MacKey& key, Side prover) const;

  const Side side_;
  const bool seals_;
  std::vector<std::byte> our_hello_;
  base::MacKey key_{};
  std::uint64_t offered_ = 0;
  std::set<std::uint64_t> admitted_;  // by number
};

}  // namespace linkspan::control
