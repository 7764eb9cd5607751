// tests/faults/workload.hpp - runs most of what the library does between two processes, in a
// process of its own whose driver answers as the test orders.
//
// That process registers memory of each kind, publishes, connects to an Engine in yet another
// process, looks up, writes and reads by each copier and after a user's stream, is written to and
// copies for the peer, sends and receives, deregisters and closes. The test's own driver calls
// there follow no order (driver_shim/rules.hpp).
// Threads: any thread.
#pragma once

#include <string>
#include <vector>

#include "base/clock.hpp"

namespace linkspan::test {

/// The result of one run.
struct Worked {
  struct Step {
    std::string name, code, what;
    Duration took;
  };
  std::vector<Step> steps;
  std::vector<std::string> calls;  ///< Calls of the driver, in order.
  std::string struck;              ///< The entries that an order failed.
  std::string wrong;               ///< Bytes, ends of processes: what is wrong. Or nothing.
  std::string left;  ///< Objects of the driver that were created and not destroyed, or nothing.

  const Step* find(const std::string& name) const;
  std::string to_string() const;
};

/// No step takes longer than this: deadlines of transfers, and what surrounds them.
inline constexpr Duration kStepLimit = std::chrono::seconds(5);

/// Runs the workload in a fresh process over the shim. Throws if that process ends or does not
/// answer.
Worked work(const std::string& order);

}  // namespace linkspan::test
