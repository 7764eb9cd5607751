// tools/linkspan/bench/bench_plan.hpp - turns the options of `linkspan bench` into rows.
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
  std::string only;                  ///< Rows of the suite whose id has it; empty: all.
  std::vector<std::uint64_t> sizes;  ///< Empty: a few of each magnitude.
  std::vector<std::string> kinds;    ///< Names of bench_kinds(). Empty: all that the machine has.
  std::string op;                    ///< "write", "read", "both"; empty: write.
  unsigned blocks = 0, pages = 0;    ///< Pieces of each size in one transfer. Both zero: one block.
  unsigned runs = 0;                 ///< Zero: by size.
  unsigned depth = 1;
  unsigned limit_s = 0;  ///< Zero: by suite.
  bool with_ceiling = false, no_verify = false, quick = false, enforce = false, checksum = false;

  unsigned limit() const noexcept { return limit_s != 0 ? limit_s : suite == "host" ? 420 : 150; }
};

/// Return the values of --kinds and --op.
std::vector<std::string> bench_kinds();
std::vector<std::string> bench_ops();

struct PlannedRow {
  enum class Kind : std::uint8_t {
    transfers,  ///< Transfers by `run`.
    both_ways,  ///< Transfers, and at the same time the reverse.
    notify      ///< A write with a notification; one-way latency.
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
  std::vector<PlannedRow> rows;  ///< Rows of one pair are adjacent.
  std::vector<Absent> absent;    ///< Rows of a suite that this machine cannot measure.
};

/// The memory of the machine.
struct Equipment {
  std::vector<Place> places;
  std::uint64_t gpu_bytes = 0;   ///< Bytes of the smallest GPU. Zero: no GPU.
  std::uint64_t host_bytes = 0;  ///< Free bytes.
};

/// Makes the plan. invalid_argument: options that exclude each other, or a kind that is not here.
Result<BenchPlan> plan_bench(const BenchOptions& options, const Equipment& here);

}  // namespace linkspan::tool
