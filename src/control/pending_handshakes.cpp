#include "control/pending_handshakes.hpp"

#include <cstring>

namespace linkspan::control {

std::string PendingHandshakes::source_of(const net::TcpAddress& address) {
  if (address.raw.ss_family != AF_INET6) return address.host();
  sockaddr_in6 six{};
  std::memcpy(&six, &address.raw, sizeof six);
  // IPv4 in IPv6 is each address by itself.
  if (IN6_IS_ADDR_V4MAPPED(&six.sin6_addr)) return address.host();
  constexpr std::size_t kNetworkBytes = 8;
  return {reinterpret_cast<const char*>(six.sin6_addr.s6_addr), kNetworkBytes};
}

void PendingHandshakes::remove_peer(const std::string& source) {
  const auto found = known_.find(source);
  if (found != known_.end() && --found->second == 0) known_.erase(found);
}

void PendingHandshakes::add(std::uint64_t id, const std::string& source) {
  pending_.emplace(id, PendingHandshake{source, has_peer(source)});
}

std::optional<std::vector<std::uint64_t>> PendingHandshakes::eviction_candidates(
    const std::string& source) const {
  const bool stranger = !source.empty() && !has_peer(source);
  std::vector<std::uint64_t> of_source, strangers;
  for (const auto& [id, guest] : pending_) {
    if (guest.source == source && (!stranger || !guest.known)) of_source.push_back(id);
    if (!guest.source.empty() && !guest.known) strangers.push_back(id);
  }
  if (of_source.size() >= (stranger ? most_of_address_ : most_)) return of_source;
  if (stranger && strangers.size() >= most_) return strangers;
  return std::nullopt;
}

}  // namespace linkspan::control
