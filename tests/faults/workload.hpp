// tests/faults/workload.hpp - a little of everything that the library does between two processes,
// in a process of its own whose driver answers what the test orders.
//
// That process registers memory of each kind, publishes, connects to an Engine in yet another
// process, looks up, writes and reads by each copier and behind a stream of its user's, is written
// to and copies for the peer, sends and receives, deregisters and closes. Its driver calls beside
// the library are its own: no order holds for them (driver_shim/rules.hpp).
// Threads: any thread.
#pragma once

#include <string>
#include <vector>

#include "base/clock.hpp"

namespace linkspan::test {

/// What one run of it came to.
struct Worked {
  struct Step {
    std::string name, code, what;
    Duration took;
  };
  std::vector<Step> steps;
  std::vector<std::string> calls;  ///< Of the driver, in order.
  std::string struck;              ///< The entries that an order failed.
  std::string wrong;               ///< Bytes, ends of processes: what is wrong. Or nothing.
  std::string left;                ///< What the driver made and was not given back. Or nothing.

  const Step* find(const std::string& name) const;
  std::string to_string() const;
};

/// No step takes longer than this: deadlines of transfers, and what surrounds them.
inline constexpr Duration kStepLimit = std::chrono::seconds(5);

/// In a fresh process over the shim. Throws when that process ends or does not answer.
Worked work(const std::string& order);

}  // namespace linkspan::test
