// tests/faults/usage.hpp - what this process holds of the system, so that a leak shows as a number.
//
// Threads: any thread.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.hpp"
#include "tests/support/driver_shim/control.hpp"

namespace linkspan::test {

struct Usage {
  /// Granules above the earlier count that are no leak, where the balance counts exactly. The
  /// driver keeps memory of its own: in a run of 200 kills on two H200 it sometimes took one
  /// granule. A leak at each kill would be 200.
  static constexpr std::uint64_t kGranulesOfTheDriver = 4;

  std::uint64_t fds = 0;       ///< /proc/self/fd
  std::uint64_t threads = 0;   ///< /proc/self/task, but for those that an Engine starts late.
  std::uint64_t mappings = 0;  ///< Shared mappings of /proc/self/maps, so no heap and no stacks.
  /// Granules of 2 MiB, as cudaMalloc uses them, on all GPUs that are up.
  std::uint64_t granules = 0;
  DriverBalance balance;  ///< Objects of the driver; empty without the shim.
  std::string names;      ///< Names of the threads, each followed by a space.

  static Usage now();
  /// Returns the lowest value of each within `time`, because what has ended may be released a
  /// moment later. Returns early when nothing is above `enough`.
  static Usage lowest(Duration time, const Usage& enough);

  /// Allows for what staging keeps: the streams that were once needed at the same time
  /// (copy::StagingStreams), with what the simulated driver has for each, and the buffers that were
  /// once used. That many more than before are no leak.
  void allow_staging(std::uint64_t lanes, std::uint64_t slots);

  /// Returns the sum by which all values exceed `before`. Granules count exactly only without a
  /// shim.
  std::uint64_t above(const Usage& before) const;
  std::string to_string() const;
};

}  // namespace linkspan::test
