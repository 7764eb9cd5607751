// tools/linkspan/bench_plan.hpp - what `linkspan bench` is to measure: its options become rows.
//
// Threads: pure functions of values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "linkspan/status.hpp"
#include "tools/linkspan/memories.hpp"
#include "tools/linkspan/pair_run.hpp"
#include "tools/linkspan/report.hpp"

namespace linkspan::tool {

struct BenchOptions {
  std::string suite;                 ///< Empty: sizes x kinds x kinds x op.
  std::vector<std::uint64_t> sizes;  ///< Empty: some of each magnitude.
  std::vector<std::string> kinds;    ///< Of bench_kinds(). Empty: all that the machine has.
  std::string op;                    ///< "write", "read", "both"; empty: write.
  unsigned runs = 0;                 ///< Zero: by size.
  unsigned depth = 1;
  unsigned limit_s = 150;
  bool with_ceiling = false, no_verify = false, quick = false, enforce = false;
};

/// Words for --kinds, --suite and --op.
std::vector<std::string> bench_kinds();
std::vector<std::string> bench_suites();
std::vector<std::string> bench_ops();

struct PlannedRow {
  Op op = Op::write;
  Place from, to;
  RunPlan run;

  Place local() const noexcept { return op == Op::write ? from : to; }
  Place remote() const noexcept { return op == Op::write ? to : from; }
  bool same_pair(const PlannedRow& other) const noexcept {
    return op == other.op && from == other.from && to == other.to;
  }
};

struct BenchPlan {
  std::vector<PlannedRow> rows;  ///< Those of a pair follow each other.
  std::vector<Absent> absent;    ///< Of a suite, which this machine cannot have.
};

/// `here`: the machine's Places. invalid_argument: options that exclude each other, or a kind that
/// is not here.
Result<BenchPlan> plan_bench(const BenchOptions& options, const std::vector<Place>& here);

}  // namespace linkspan::tool
