#include "base/numa.hpp"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "base/pci.hpp"

namespace linkspan::base {

int numa_node_of(const std::string& bus_id, const std::string& sysfs) {
  std::string online;  // "0", "0-1", "0,2-3"
  if (!(std::ifstream(sysfs + "/devices/system/node/online") >> online) ||
      online.find_first_of("-,") == std::string::npos)
    return -1;
  int node = -1;
  if (!(std::ifstream(pci_path_of(bus_id, sysfs) + "/numa_node") >> node)) return -1;
  return std::max(node, -1);
}

// The system calls expect the number of bits plus one.
PreferredNode::PreferredNode(int node) noexcept {
  constexpr unsigned kBits = 8 * sizeof(unsigned long);
  if (node < 0 || static_cast<unsigned long>(node) >= kNodes) return;
  if (::syscall(SYS_get_mempolicy, &before_, before_of_.data(), kNodes + 1, nullptr, 0UL) != 0)
    return;
  const auto at = static_cast<unsigned>(node);
  Mask mask{};
  mask[at / kBits] = 1UL << (at % kBits);
  changed_ = ::syscall(SYS_set_mempolicy, MPOL_PREFERRED, mask.data(), kNodes + 1) == 0;
}

PreferredNode::~PreferredNode() {
  if (changed_) (void)::syscall(SYS_set_mempolicy, before_, before_of_.data(), kNodes + 1);
}

}  // namespace linkspan::base
