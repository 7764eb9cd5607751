#include "net/interfaces.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>

namespace linkspan::net {
namespace {

/// Returns the bytes of an address in network order.
std::span<const std::uint8_t> bits_of(const sockaddr_storage& raw) {
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(&raw);
  return raw.ss_family == AF_INET ? std::span(bytes + offsetof(sockaddr_in, sin_addr), 4)
                                  : std::span(bytes + offsetof(sockaddr_in6, sin6_addr), 16);
}

bool counts(const TcpAddress& address) {
  const auto bits = bits_of(address.raw);
  if (address.is_loopback()) return false;
  // 0.0.0.0/8 is this host, 224.0.0.0/4 is multicast, 240.0.0.0/4 is reserved or broadcast.
  // 169.254.0.0/16 is local to a link.
  if (address.raw.ss_family == AF_INET)
    return bits[0] != 0 && bits[0] < 224 && !(bits[0] == 169 && bits[1] == 254);
  constexpr std::array<std::uint8_t, 8> kFourInSix{};  // mapped, compatible, unspecified
  // IPv4 through a translator: 64:ff9b::/96 and 64:ff9b:1::/48 (RFC 6052, 8215), 2002::/16 (3056).
  constexpr std::array<std::uint8_t, 4> kTranslated{0, 0x64, 0xff, 0x9b};
  const bool link_local = bits[0] == 0xfe && (bits[1] & 0xc0) == 0x80;
  const bool embedded = std::ranges::equal(bits.first(8), kFourInSix) ||
                        std::ranges::equal(bits.first(4), kTranslated) ||
                        (bits[0] == 0x20 && bits[1] == 0x02);
  return bits[0] != 0xff && !link_local && !embedded;
}

unsigned prefix_of(const sockaddr* mask, sa_family_t family) {
  if (mask == nullptr) return 8 * (family == AF_INET ? 4 : 16);
  sockaddr_storage raw{};
  std::memcpy(&raw, mask, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
  raw.ss_family = family;  // the kernel omits it for some
  unsigned ones = 0;
  for (const std::uint8_t byte : bits_of(raw))
    ones += static_cast<unsigned>(__builtin_popcount(byte));
  return ones;
}

/// Returns all interfaces of this network namespace, also those without an address that counts.
Result<std::map<std::string, std::vector<Interface::At>, std::less<>>> all_interfaces() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return base::Fd::from("getifaddrs", -1).status();
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(first, &::freeifaddrs);
  std::map<std::string, std::vector<Interface::At>, std::less<>> all;
  for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
    // "eth0:1" is how ifconfig(8) names more addresses of eth0.
    const std::string name(each->ifa_name, std::strcspn(each->ifa_name, ":"));
    std::vector<Interface::At>& at = all[name];
    if (each->ifa_addr == nullptr) continue;
    const sa_family_t family = each->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    Interface::At found;
    found.address.bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&found.address.raw, each->ifa_addr, found.address.bytes);
    found.prefix = prefix_of(each->ifa_netmask, family);
    if (counts(found.address)) at.push_back(found);
  }
  return all;
}

bool same_family(const TcpAddress& a, const TcpAddress& b) {
  return a.raw.ss_family == b.raw.ss_family;
}

bool same_subnet(const Interface::At& ours, const TcpAddress& theirs) {
  if (!same_family(ours.address, theirs)) return false;
  const auto a = bits_of(ours.address.raw), b = bits_of(theirs.raw);
  for (std::size_t i = 0, left = std::min<std::size_t>(ours.prefix, 8 * a.size()); left != 0; ++i) {
    const auto here = static_cast<unsigned>(std::min<std::size_t>(left, 8));
    if (((a[i] ^ b[i]) >> (8 - here)) != 0) return false;
    left -= here;
  }
  return true;
}

}  // namespace

Result<std::vector<Interface>> find_interfaces(std::string_view names, std::string_view option) {
  std::vector<Interface> found;
  if (names.empty()) return found;
  auto all = all_interfaces();
  if (!all.ok()) return all.status();
  const auto bad = [option](Code code, const std::string& why) {
    return Status(code, Scope::process, std::string(option) + ": " + why);
  };
  const auto missing = [&](const std::string& name, const char* why) {
    std::string usable;
    for (const auto& [other, at] : *all)
      if (!at.empty()) usable += (usable.empty() ? "" : ", ") + other;
    return bad(Code::not_found, "interface \"" + name + "\" " + why + "; usable are " +
                                    (usable.empty() ? "none" : usable));
  };
  std::size_t addresses = 0;
  for (std::size_t begin = 0; begin <= names.size();) {
    const std::size_t end = std::min(names.find(',', begin), names.size());
    const std::string name(names.substr(begin, end - begin));
    begin = end + 1;
    if (name.empty())
      return bad(Code::invalid_argument, "\"" + std::string(names) +
                                             "\" has an empty name; give names of interfaces "
                                             "with a comma between them, as in eth1,eth2");
    if (std::ranges::find(found, name, &Interface::name) != found.end())
      return bad(Code::invalid_argument, "interface \"" + name + "\" is named twice");
    const auto here = all->find(name);
    if (here == all->end()) return missing(name, "is not here");
    if (here->second.empty())
      return missing(name, "has no address by which another host reaches it");
    addresses += here->second.size();
    found.push_back({name, here->second});
  }
  if (addresses > kMaxInterfaceAddresses)
    return bad(Code::invalid_argument, "these interfaces have " + std::to_string(addresses) +
                                           " addresses; " + std::to_string(kMaxInterfaceAddresses) +
                                           " are what a peer takes: name fewer");
  return found;
}

std::vector<TcpAddress> addresses_of(std::span<const Interface> interfaces) {
  std::vector<TcpAddress> out;
  for (const Interface& each : interfaces)
    for (const Interface::At& at : each.at) out.push_back(at.address);
  return out;
}

Result<std::vector<TcpAddress>> addresses_of_host() {
  const auto all = all_interfaces();
  if (!all.ok()) return all.status();
  std::vector<TcpAddress> out;
  for (const auto& [name, at] : *all)
    for (const Interface::At& each : at) out.push_back(each.address);
  return out;
}

std::optional<TcpAddress> parse_host(std::string_view text) {
  if (text.size() >= INET6_ADDRSTRLEN || text.find('\0') != std::string_view::npos)
    return std::nullopt;
  const std::string host(text);
  TcpAddress address;
  in_addr four{};
  in6_addr six{};
  if (::inet_pton(AF_INET, host.c_str(), &four) == 1) {
    sockaddr_in raw{};
    raw.sin_family = AF_INET;
    raw.sin_addr = four;
    address.bytes = sizeof raw;
    std::memcpy(&address.raw, &raw, sizeof raw);
  } else if (::inet_pton(AF_INET6, host.c_str(), &six) == 1) {
    sockaddr_in6 raw{};
    raw.sin6_family = AF_INET6;
    raw.sin6_addr = six;
    address.bytes = sizeof raw;
    std::memcpy(&address.raw, &raw, sizeof raw);
  } else {
    return std::nullopt;
  }
  return counts(address) ? std::optional(address) : std::nullopt;
}

std::string DataConnectionRoute::to_string() const {
  if (interface.empty()) return to.to_string();
  return interface + " (" + from.host() + ") to " + to.to_string();
}

std::optional<DataConnectionRoute> choose_route(std::span<const Interface> ours,
                                                std::span<const TcpAddress> theirs, std::uint64_t k,
                                                std::uint16_t port) {
  if (ours.empty()) return std::nullopt;
  const Interface& interface = ours[k % ours.size()];
  const auto pick = [&](const auto& fits) -> std::optional<DataConnectionRoute> {
    for (const Interface::At& at : interface.at) {
      std::vector<TcpAddress> fitting;
      for (const TcpAddress& each : theirs)
        if (fits(at, each)) fitting.push_back(each);
      if (!fitting.empty())
        return DataConnectionRoute{interface.name, at.address,
                                   fitting[k % fitting.size()].with_port(port)};
    }
    return std::nullopt;
  };
  if (auto near = pick(same_subnet)) return near;
  return pick([](const Interface::At& at, const TcpAddress& each) {
    return same_family(at.address, each);
  });
}

}  // namespace linkspan::net
