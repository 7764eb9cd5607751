// tools/linkspan/bench/bench_plan.hpp - what `linkspan bench` is to measure: its options become
// rows.
//
// Threads: pure functions of values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "linkspan/status.hpp"
#include "tools/linkspan/measure/pair_run.hpp"
#include "tools/linkspan/measure/report.hpp"
#include "tools/linkspan/pair/memories.hpp"

namespace linkspan::tool {

struct BenchOptions {
  std::string suite;                 ///< Empty: sizes x kinds x kinds x op.
  std::vector<std::uint64_t> sizes;  ///< Empty: some of each magnitude.
  std::vector<std::string> kinds;    ///< Of bench_kinds(). Empty: all that the machine has.
  std::string op;                    ///< "write", "read", "both"; empty: write.
  unsigned blocks = 0, pages = 0;    ///< Of each size in one transfer; zero: one block.
  unsigned runs = 0;                 ///< Zero: by size.
  unsigned depth = 1;
  unsigned limit_s = 0;  ///< Zero: by suite.
  bool with_ceiling = false, no_verify = false, quick = false, enforce = false, checksum = false;

  unsigned limit() const noexcept { return limit_s != 0 ? limit_s : suite == "host" ? 420 : 150; }
};

/// Words for --kinds and --op.
std::vector<std::string> bench_kinds();
std::vector<std::string> bench_ops();

struct PlannedRow {
  enum class Kind : std::uint8_t {
    transfers,  ///< As `run` says.
    both_ways,  ///< The same from `to` to `from` at the same time.
    notify      ///< With a notification, one way.
  };
  Op op = Op::write;
  Place from, to;
  RunPlan run;
  Kind kind = Kind::transfers;

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

/// What the machine has.
struct Equipment {
  std::vector<Place> places;
  std::uint64_t gpu_bytes = 0;   ///< Of the smallest GPU; zero: none.
  std::uint64_t host_bytes = 0;  ///< Free.
};

/// invalid_argument: options that exclude each other, or a kind that is not here.
Result<BenchPlan> plan_bench(const BenchOptions& options, const Equipment& here);

}  // namespace linkspan::tool
