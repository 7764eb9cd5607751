#include "control/pending_handshakes.hpp"

#include <algorithm>
#include <cstring>

namespace linkspan::control {
namespace {

/// Age from which a handshake may be closed to make room for another one.
constexpr auto kSlow = std::chrono::seconds(1);

}  // namespace

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

void PendingHandshakes::add(std::uint64_t id, const std::string& source, base::Time since) {
  pending_.emplace(id, PendingHandshake{source, has_peer(source), since});
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

Status PendingHandshakes::make_room(
    const std::string& source, const std::function<bool(std::uint64_t)>& is_silent,
    const std::function<void(std::uint64_t, const Status&)>& evict) const {
  const auto candidates = eviction_candidates(source);
  if (!candidates) return {};
  const std::string all = std::to_string(candidates->size()) + " handshakes are under way here";
  const base::Time now = base::Clock::steady().now();
  auto goes = std::ranges::find_if(*candidates, is_silent);
  if (goes == candidates->end())
    goes = std::ranges::find_if(
        *candidates, [&](std::uint64_t id) { return now - pending_.at(id).since > kSlow; });
  if (goes == candidates->end())
    return {Code::no_resource, Scope::peer, all + ", which is all that it takes: try again"};
  evict(*goes, Status(Code::no_resource, Scope::peer, all + ", and this one made room: try again"));
  return {};
}

}  // namespace linkspan::control
