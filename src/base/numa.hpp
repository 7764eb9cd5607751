// base/numa.hpp - memory near a device: its NUMA node, and pages that are taken there.
//
// Staging slots are pinned so (copy/staging.hpp): what a GPU copies then crosses no link between
// the CPUs.
// Threads: any thread; a PreferredNode is its thread's.
#pragma once

#include <array>
#include <string>

namespace linkspan::base {

/// Of the PCI device at `bus_id` ("0000:18:00.0", in either case), as sysfs tells. -1: not known,
/// or there is one node only, so that nothing has to be preferred. Reads two files.
int numa_node_of(const std::string& bus_id, const std::string& sysfs = "/sys");

/// While it lives the kernel takes pages for this thread from that node, as long as it has some.
/// Where that cannot be asked for (many containers do not allow it) they lie where they would.
class PreferredNode {
 public:
  explicit PreferredNode(int node) noexcept;  ///< Below 0: nothing is asked for.
  PreferredNode(const PreferredNode&) = delete;
  PreferredNode& operator=(const PreferredNode&) = delete;
  ~PreferredNode();

 private:
  static constexpr unsigned long kNodes = 1024;  // that kernels are built for at most
  using Mask = std::array<unsigned long, kNodes / (8 * sizeof(unsigned long))>;

  bool changed_ = false;
  int before_ = 0;  // the thread's policy
  Mask before_of_{};
};

}  // namespace linkspan::base
