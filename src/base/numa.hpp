// base/numa.hpp - memory near a device: the NUMA node of the device, and pages from that node.
//
// Staging buffers are pinned there (copy/staging.hpp), so a GPU's copies cross no link between
// CPUs. Threads: any thread; a PreferredNode belongs to its thread.
#pragma once

#include <array>
#include <string>

namespace linkspan::base {

/// Returns the node of the PCI device at `bus_id` ("0000:18:00.0", in either case) from sysfs.
/// Returns -1 if it is unknown or there is only one node. Reads two files.
int numa_node_of(const std::string& bus_id, const std::string& sysfs = "/sys");

/// Makes the kernel prefer that node for pages of this thread, while it lives. Has no effect where
/// the policy cannot be set (many containers).
class PreferredNode {
 public:
  explicit PreferredNode(int node) noexcept;  ///< Below 0: no preference.
  PreferredNode(const PreferredNode&) = delete;
  PreferredNode& operator=(const PreferredNode&) = delete;
  ~PreferredNode();

 private:
  static constexpr unsigned long kNodes = 1024;  // maximum that kernels are built for
  using Mask = std::array<unsigned long, kNodes / (8 * sizeof(unsigned long))>;

  bool changed_ = false;
  int before_ = 0;  // the thread's previous policy
  Mask before_of_{};
};

}  // namespace linkspan::base
