#include "control/waiting_room.hpp"

#include <cstring>

namespace linkspan::control {

std::string WaitingRoom::source_of(const net::TcpAddress& address) {
  if (address.raw.ss_family != AF_INET6) return address.host();
  sockaddr_in6 six{};
  std::memcpy(&six, &address.raw, sizeof six);
  // IPv4 in IPv6 is each address by itself.
  if (IN6_IS_ADDR_V4MAPPED(&six.sin6_addr)) return address.host();
  constexpr std::size_t kNetworkBytes = 8;
  return {reinterpret_cast<const char*>(six.sin6_addr.s6_addr), kNetworkBytes};
}

void WaitingRoom::forget(const std::string& source) {
  const auto found = known_.find(source);
  if (found != known_.end() && --found->second == 0) known_.erase(found);
}

void WaitingRoom::enter(std::uint64_t id, const std::string& source) {
  guests_.emplace(id, Guest{source, knows(source)});
}

std::optional<std::vector<std::uint64_t>> WaitingRoom::in_the_way(const std::string& source) const {
  const bool stranger = !source.empty() && !knows(source);
  std::vector<std::uint64_t> of_source, strangers;
  for (const auto& [id, guest] : guests_) {
    if (guest.source == source && (!stranger || !guest.known)) of_source.push_back(id);
    if (!guest.source.empty() && !guest.known) strangers.push_back(id);
  }
  if (of_source.size() >= (stranger ? most_of_address_ : most_)) return of_source;
  if (stranger && strangers.size() >= most_) return strangers;
  return std::nullopt;
}

}  // namespace linkspan::control
