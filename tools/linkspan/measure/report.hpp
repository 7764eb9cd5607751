// tools/linkspan/measure/report.hpp - the results of a measurement, before they become a table or
// JSON.
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
#include "tools/linkspan/pair/memories.hpp"

namespace linkspan::tool {

/// Returns a title: "gpu0 -> pinned (read)".
std::string title(const std::string& from, const std::string& to, Op op);

/// The times of runs, each from before its first submission until all its transfers were seen to
/// end.
struct Timing {
  double p50 = 0, p99 = 0, max = 0;  ///< us
  unsigned runs = 0;                 ///< Zero: not measured.
};

/// A bare copy that is not the ceiling.
struct Beside {
  std::string how;
  Timing timing;
};

/// The value that a row must reach. Zero: no bar.
struct Bar {
  double value = 0;
  bool absolute = false;  ///< Applies to the figure itself, else to its ratio to the ceiling.
};

/// One shape between two memories.
struct Row {
  std::string from, to;  ///< Names of Places.
  Op op = Op::write;  ///< Operation of the first process: read if the remote memory is the source.
  std::string shape{};            ///< Shape::name()
  std::string label{}, suffix{};  ///< Parts of the id, if the row has one of its own (row_ids.hpp).
  std::uint64_t bytes = 0;        ///< Bytes of one transfer.
  unsigned depth = 1;    ///< Transfers of a run: all are submitted, then all are waited for.
  bool latency = false;  ///< The figure is the time of a run, else the rate.
  Bar bar{};             ///< Set by a suite.
  std::string path{}, executor{};
  std::string refused{};  ///< Why the best refused path was refused. Empty: none was.
  std::string ceiling_how{};
  Timing ours{}, bare{};  ///< Measured in alternation.
  std::vector<Beside> beside{};
  bool verified = false;  ///< Every byte arrived, and no other changed.
  Status status{};        ///< What failed.

  bool measured() const noexcept { return ours.runs != 0; }
  /// Returns the median in GB/s (1e9) or us.
  double figure(const Timing& timing) const noexcept {
    if (timing.runs == 0 || latency) return timing.p50;
    return static_cast<double>(bytes) * depth / std::max(timing.p50, 1e-3) / 1e3;
  }
  const char* unit() const noexcept { return latency ? "us" : "GB/s"; }
  /// Returns our figure divided by the ceiling's. Zero: one is missing.
  double ratio() const noexcept { return ratio_to(bare); }
  double ratio_to(const Timing& timing) const noexcept {
    return measured() && timing.runs != 0 && timing.p50 > 0 ? figure(ours) / figure(timing) : 0;
  }
};

/// A row that this machine cannot measure.
struct Absent {
  std::string id, why;
};

struct Report {
  /// Returns a report without rows.
  static Report of_machine(const Gpus& gpus);

  bare::Machine machine;
  std::string no_gpu;  ///< Why no GPU is shown. Empty: GPUs are shown.
  std::vector<Row> rows;
  std::vector<Absent> absent;
  Status stopped;  ///< Why the measurement ended before the last row, or did not start.

  bool ok() const {
    return stopped.ok() && !rows.empty() &&
           std::all_of(rows.begin(), rows.end(), [](const Row& row) { return row.status.ok(); });
  }
};

}  // namespace linkspan::tool
