// base/pci.hpp - how near two PCI devices are.
//
// sysfs shows a device in a folder within those of the bridges above it: the more folders two
// devices share, the fewer bridges and links of CPUs are between them.
// Threads: any thread.
#pragma once

#include <cstddef>
#include <string>

namespace linkspan::base {

/// Returns a path such as "/sys/devices/pci0000:15/.../0000:18:00.0" of the device at `bus_id`
/// ("0000:18:00.0", in either case). Empty if sysfs does not show it, as in many containers.
std::string pci_path_of(const std::string& bus_id, const std::string& sysfs = "/sys");

/// Returns how many folders both paths begin with; 0 for an empty path.
std::size_t shared_bridges(const std::string& a, const std::string& b);

/// Returns the bus id of a bridge that sends what goes between two devices below one switch up to
/// the CPU: its Access Control Services redirect requests or completions. Empty: there is none, or
/// the user may not read the bridges' configuration, which takes root. Reads PCI Express Base
/// Specification's extended capability 0x000d, "ACS Control".
std::string acs_redirect(const std::string& a, const std::string& b);

}  // namespace linkspan::base
