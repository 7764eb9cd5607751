// tools/linkspan/bench/suites.hpp - the rows that evidence/ keeps and that have a bar, by suite.
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
  Bar bar{};  ///< Zero: as row_ids.hpp knows it, or none.
  const char *label = "", *suffix = "";
  Against against = Against::usual;
  PlannedRow::Kind kind = PlannedRow::Kind::transfers;
  bool prepared = false, gpu_indices = false, low_latency = false;
  unsigned relay_gpus = 0;
};

inline constexpr const char* kHostsSuite = "hosts";
std::vector<std::string> suite_names();
/// Empty: there is no such suite.
std::span<const SuiteRow> suite_rows(const std::string& suite);

}  // namespace linkspan::tool
