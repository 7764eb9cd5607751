// tools/linkspan/demo_report.hpp - what a demo found, before it becomes a table or JSON.
//
// Threads: values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/bare/machine.hpp"
#include "linkspan/status.hpp"
#include "linkspan/types.hpp"

namespace linkspan::tool {

/// Medians of alternated runs, and the bare call of the same runs.
struct Figure {
  double value = 0, bare = 0;
  unsigned runs = 0;  ///< Zero: not measured.
  double ratio() const noexcept { return bare > 0 ? value / bare : 0; }
};

struct PairReport {
  std::string from, to;  ///< Names of Places.
  Op op = Op::write;     ///< Of the first process: read when the far memory is the source.
  std::string path, executor;
  std::string refused;  ///< Why nothing better; empty: nothing is.
  std::string ceiling_how;
  std::uint64_t bytes = 0;  ///< Of the transfer that `rate` is of.
  Figure rate, latency;     ///< GB/s (1e9), and us of 8 bytes (p50).
  Status status;            ///< OK: every byte was verified.
};

struct DemoReport {
  bare::Machine machine;
  std::string no_gpu;  ///< Why GPUs are not shown; empty: they are.
  std::vector<PairReport> pairs;
  Status stopped;  ///< Why it ended before the last pair, or never began.

  bool ok() const {
    return stopped.ok() && !pairs.empty() &&
           std::all_of(pairs.begin(), pairs.end(), [](const auto& p) { return p.status.ok(); });
  }
};

}  // namespace linkspan::tool
