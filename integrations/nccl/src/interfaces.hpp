// nccl/interfaces.hpp - the network interfaces that NCCL's variables choose, and their speed.
//
// Threads: any thread; reads the environment and /sys.
#pragma once

#include <string>
#include <vector>

#include "linkspan/status.hpp"

namespace linkspan::nccl {

struct Interface {
  std::string name;     ///< "eth0"
  std::string address;  ///< As a tcp: address has it: "10.0.0.1" or "[fd00::1]".
  bool loopback = false;
};

/// Lists the interfaces that are up and have an address of the family. `names` as in
/// NCCL_SOCKET_IFNAME: prefixes with commas, '^' before all excludes them, '=' means whole names.
/// Empty: all but docker's and, unless there is no other, loopback. `family` as in
/// NCCL_SOCKET_FAMILY: "AF_INET", "AF_INET6" or empty. invalid_argument: another family.
/// not_found: no such interface; the text lists those there are.
Result<std::vector<Interface>> choose_interfaces(const std::string& names,
                                                 const std::string& family);

/// Returns the sum of their speeds in Mb/s. NCCL makes channels by it, so what tells none counts as
/// 100 Gb/s: virtual cards carry more than the 10 Gb/s that NCCL would assume.
int speed_of(const std::vector<Interface>& interfaces);

/// Returns the PCI path of the interface in /sys; empty: it has none.
std::string pci_path_of(const Interface& interface);

}  // namespace linkspan::nccl
