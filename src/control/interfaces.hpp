// control/interfaces.hpp - the network interfaces that a user has named for data connections
// (LINKSPAN_TCP_INTERFACES): their addresses, and from which of ours to which of a peer's a data
// connection goes.
//
// Only addresses that another host may know count: none of loopback, none that is unspecified,
// multicast, local to a link, or IPv4 in the clothes of IPv6.
// Threads: any thread; names are looked up in the network namespace of the one that calls.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "net/tcp_socket.hpp"

namespace linkspan::control {

inline constexpr std::size_t kMaxInterfaceAddresses = 16;

struct Interface {
  struct At {
    net::TcpAddress address;  ///< Its port is 0.
    unsigned prefix = 0;      ///< Bits that all of its subnet have.
  };
  std::string name;
  std::vector<At> at;  ///< One at least.
};

/// In the order of `names`, which stand with commas between them; none: of an empty text.
/// not_found: one is not here, or has no address that counts; the text lists those that have.
/// invalid_argument: one is empty or comes twice, or all together have too many addresses.
Result<std::vector<Interface>> find_interfaces(std::string_view names);
std::vector<net::TcpAddress> addresses_of(std::span<const Interface> interfaces);

/// What a peer says of itself. None: no number, or one that does not count.
std::optional<net::TcpAddress> parse_host(std::string_view text);

struct DataConnectionRoute {
  std::string interface {};  ///< Empty: what the kernel chooses, and so is `from`.
  net::TcpAddress from{}, to{};
  std::string to_string() const;  ///< "eth1 (10.0.1.1) to 10.0.1.2:4711"
};
/// Of the data connection with the number k, from 0: from the interface k mod L of ours, to an
/// address in one of its subnets, else to any of a family that it has too; where there are several,
/// they take turns. None: of that interface there is no route. Pure.
std::optional<DataConnectionRoute> choose_route(std::span<const Interface> ours,
                                                std::span<const net::TcpAddress> theirs,
                                                std::uint64_t k, std::uint16_t port);

}  // namespace linkspan::control
