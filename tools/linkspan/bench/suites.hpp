// tools/linkspan/bench/suites.hpp - the rows with a bar that evidence/ keeps, by suite.
//
// Threads: constants.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tools/linkspan/bench/bench_plan.hpp"

namespace linkspan::tool {

struct SuiteRow {
  Op op = Op::write;
  Place from, to;
  Shape shape;
  unsigned depth = 1;
  Bar bar{};  ///< Zero: that of row_ids.hpp, if any.
  const char *label = "", *suffix = "";
  Against against = Against::usual;
  PlannedRow::Kind kind = PlannedRow::Kind::transfers;
  bool prepared = false, captured = false, gpu_indices = false, low_latency = false;
  bool parts = false;  ///< RunPlan::parts
  unsigned relay_gpus = 0;
};

inline constexpr const char* kHostsSuite = "hosts";
std::vector<std::string> suite_names();
/// Returns the rows of a suite. Empty: no such suite.
std::span<const SuiteRow> suite_rows(const std::string& suite);

}  // namespace linkspan::tool
