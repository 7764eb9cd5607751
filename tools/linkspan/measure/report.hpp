// tools/linkspan/measure/report.hpp - what the tool measured, before it becomes a table or JSON.
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

/// "gpu0 -> pinned (read)", for people.
std::string title(const std::string& from, const std::string& to, Op op);

/// Of runs from before the first submission until the end of the last was seen.
struct Timing {
  double p50 = 0, p99 = 0, max = 0;  ///< us
  unsigned runs = 0;                 ///< Zero: not measured.
};

/// A bare call that is not the ceiling.
struct Beside {
  std::string how;
  Timing timing;
};

/// What a row must reach. Zero: it has no bar.
struct Bar {
  double value = 0;
  bool absolute = false;  ///< Of the figure itself, else of its ratio to the ceiling.
};

/// One shape between two memories.
struct Row {
  std::string from, to;           ///< Names of Places.
  Op op = Op::write;              ///< Of the first process: read when the far memory is the source.
  std::string shape{};            ///< Shape::name()
  std::string label{}, suffix{};  ///< Of its id, if it has one of its own (row_ids.hpp).
  std::uint64_t bytes = 0;        ///< Of one transfer.
  unsigned depth = 1;    ///< Transfers of a run: all are submitted, then all are waited for.
  bool latency = false;  ///< Its figure is the time of a run, else the rate.
  Bar bar{};             ///< Of a suite.
  std::string path{}, executor{};
  std::string refused{};  ///< Why nothing better; empty: nothing is.
  std::string ceiling_how{};
  Timing ours{}, bare{};  ///< Of runs that took turns.
  std::vector<Beside> beside{};
  bool verified = false;  ///< Every byte arrived, and no other was touched.
  Status status{};        ///< What failed.

  bool measured() const noexcept { return ours.runs != 0; }
  /// GB/s (1e9) or us; the medians'.
  double figure(const Timing& timing) const noexcept {
    if (timing.runs == 0 || latency) return timing.p50;
    return static_cast<double>(bytes) * depth / std::max(timing.p50, 1e-3) / 1e3;
  }
  const char* unit() const noexcept { return latency ? "us" : "GB/s"; }
  /// Ours by the bare call's; zero: one is missing.
  double ratio() const noexcept { return ratio_to(bare); }
  double ratio_to(const Timing& timing) const noexcept {
    return measured() && timing.runs != 0 && timing.p50 > 0 ? figure(ours) / figure(timing) : 0;
  }
};

/// A row that this machine cannot have.
struct Absent {
  std::string id, why;
};

struct Report {
  /// Without rows yet.
  static Report of_machine(const Gpus& gpus);

  bare::Machine machine;
  std::string no_gpu;  ///< Why GPUs are not shown; empty: they are.
  std::vector<Row> rows;
  std::vector<Absent> absent;
  Status stopped;  ///< Why it ended before the last row, or never began.

  bool ok() const {
    return stopped.ok() && !rows.empty() &&
           std::all_of(rows.begin(), rows.end(), [](const Row& row) { return row.status.ok(); });
  }
};

}  // namespace linkspan::tool
