// net/interfaces.hpp - the network interfaces that a user named for data connections,
// and the route of each data connection between two hosts.
//
// Only addresses that another host can reach count: not loopback, unspecified, multicast,
// link-local, or IPv4 embedded in IPv6.
// Threads: any thread; names are looked up in the network namespace of the calling thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "net/tcp_socket.hpp"

namespace linkspan::net {

inline constexpr std::size_t kMaxInterfaceAddresses = 16;

struct Interface {
  struct At {
    TcpAddress address;   ///< Its port is 0.
    unsigned prefix = 0;  ///< Length of the subnet prefix, in bits.
  };
  std::string name;
  std::vector<At> at;  ///< Never empty.
};

/// Returns the interfaces in the order of `names`, which is separated by commas and may be empty.
/// Errors begin with `option`. not_found: one does not exist or has no address that counts; the
/// text lists usable ones. invalid_argument: a name is empty or repeated, or there are more than
/// kMaxInterfaceAddresses.
Result<std::vector<Interface>> find_interfaces(std::string_view names, std::string_view option);
std::vector<TcpAddress> addresses_of(std::span<const Interface> interfaces);
/// Returns the addresses that count of all interfaces, in the order of the interfaces' names.
Result<std::vector<TcpAddress>> addresses_of_host();

/// Parses an address that a peer claims. nullopt: it is not numeric, or does not count.
std::optional<TcpAddress> parse_host(std::string_view text);

struct DataConnectionRoute {
  std::string interface {};  ///< Empty: the kernel chooses it and `from`.
  TcpAddress from{}, to{};
  std::string to_string() const;  ///< "eth1 (10.0.1.1) to 10.0.1.2:4711"
};
/// Returns the route of data connection k, from 0. It leaves by our interface k mod L, to an
/// address in one of its subnets, else to any address of a common family; several are used in
/// rotation. nullopt: that interface has no route. Pure.
std::optional<DataConnectionRoute> choose_route(std::span<const Interface> ours,
                                                std::span<const TcpAddress> theirs, std::uint64_t k,
                                                std::uint16_t port);

}  // namespace linkspan::net
