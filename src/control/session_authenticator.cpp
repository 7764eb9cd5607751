#include "control/session_authenticator.hpp"

namespace linkspan::control {
namespace {

constexpr std::size_t kMaxDataConnections = 256;  // beside a session, ever

}  // namespace

Status SessionAuthenticator::derive(std::string_view secret, std::uint64_t our_incarnation,
                                    const SignedHello& theirs) {
  const SignedHello ours{our_hello_, our_incarnation};
  const bool connects = side_ == Side::connector;
  const auto key = session_key(std::as_bytes(std::span(secret)), connects ? ours : theirs,
                               connects ? theirs : ours);
  if (key.ok()) key_ = *key;
  return key.status();
}

Result<SessionAuthenticator::KeyProof> SessionAuthenticator::proof_of(const base::MacKey& key,
                                                                      Side prover) const {
  const auto mac = auth_mac(key, prover);
  const auto keys = mac_keys_of(key, side_);
  if (!mac.ok() || !keys.ok()) return mac.ok() ? keys.status() : mac.status();
  return KeyProof{*mac, *keys};
}

Result<DataConnectionOffer> SessionAuthenticator::offer(std::string transport) {
  DataConnectionOffer offer{{.transport = std::move(transport), .number = ++offered_}, {}};
  const auto key = data_connection_key(key_, offer.hello.transport, offer.hello.number);
  if (!key.ok()) return key.status();
  const auto proof = proof_of(*key, side_);
  if (!proof.ok()) return proof.status();
  offer.hello.proof = proof->mac;
  if (seals_) offer.seals = proof->keys;
  return offer;
}

Result<std::optional<base::MacKeys>> SessionAuthenticator::admit(const DataConnectionHello& hello) {
  const auto key = data_connection_key(key_, hello.transport, hello.number);
  if (!key.ok()) return key.status();
  const auto right = proof_of(*key, other(side_));
  if (!right.ok()) return right.status();
  if (!base::same_secret(hello.proof, right->mac))
    return Status(Code::permission_denied, Scope::peer,
                  "a data connection of a session that is none");
  if (admitted_.size() >= kMaxDataConnections || !admitted_.insert(hello.number).second)
    return Status(Code::permission_denied, Scope::peer, "a data connection that was made before");
  return seals_ ? std::optional(right->keys) : std::nullopt;
}

}  // namespace linkspan::control
