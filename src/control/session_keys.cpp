#include "control/session_keys.hpp"

#include <array>

namespace linkspan::control {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/// Returns the number in little-endian order, like all numbers on the wire.
std::array<std::byte, 8> bytes_of(std::uint64_t number) {
  std::array<std::byte, 8> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(number >> 8 * i);
  return bytes;
}

std::string_view name_of(Side side) { return side == Side::connector ? "connector" : "acceptor"; }

}  // namespace

Result<base::MacKey> session_key(std::span<const std::byte> secret, const SignedHello& connector,
                                 const SignedHello& acceptor) {
  return base::hmac(
      secret, {bytes_of("linkspan session"), bytes_of(connector.incarnation),
               bytes_of(connector.hello.size()), connector.hello, bytes_of(acceptor.incarnation),
               bytes_of(acceptor.hello.size()), acceptor.hello});
}

Result<base::MacKey> auth_mac(const base::MacKey& key, Side side) {
  return base::hmac(key, {bytes_of("linkspan proof "), bytes_of(name_of(side))});
}

Result<base::MacKeys> mac_keys_of(const base::MacKey& key, Side side) {
  const auto from = [&](Side sender) {
    return base::hmac(key, {bytes_of("linkspan seal "), bytes_of(name_of(sender))});
  };
  const auto out = from(side), in = from(other(side));
  if (!out.ok() || !in.ok()) return out.ok() ? in.status() : out.status();
  return base::MacKeys{*out, *in};
}

Result<base::MacKey> data_connection_key(const base::MacKey& session, std::string_view transport,
                                         std::uint64_t number) {
  return base::hmac(session, {bytes_of("linkspan stream"), bytes_of(number), bytes_of(transport)});
}

}  // namespace linkspan::control
