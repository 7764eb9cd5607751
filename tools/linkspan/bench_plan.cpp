#include "tools/linkspan/bench_plan.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "tools/linkspan/row_ids.hpp"
#include "tools/linkspan/table.hpp"

namespace linkspan::tool {
namespace {

constexpr std::uint64_t kKiB = std::uint64_t{1} << 10, kMiB = kKiB << 10, kGiB = kMiB << 10;
constexpr Place kGpu0{.kind = MemoryKind::device}, kGpu1{.kind = MemoryKind::device, .gpu = 1};
constexpr Place kPinned{.kind = MemoryKind::pinned}, kHost{.kind = MemoryKind::host};
constexpr Place kShared{.kind = MemoryKind::shared};
constexpr std::uint64_t kMaxMemory = 64 * kGiB;  // that a Place needs
constexpr const char* kFoundation = "foundation";

struct Word {
  const char* word = nullptr;
  Place place;
};
constexpr std::array kKinds = {Word{"device0", kGpu0}, Word{"device1", kGpu1},
                               Word{"pinned", kPinned}, Word{"host", kHost},
                               Word{"shared", kShared}};

struct SuiteRow {
  Op op = Op::write;
  Place from, to;
  std::uint64_t bytes = 0;
};
/// The rows of evidence/foundation.json that have a bar: between two GPUs, and between a GPU and
/// host memory of this process and of the other.
constexpr std::array kFoundationRows = {
    SuiteRow{Op::write, kGpu0, kGpu1, kGiB},   SuiteRow{Op::write, kGpu0, kGpu1, 8},
    SuiteRow{Op::write, kPinned, kGpu0, kGiB}, SuiteRow{Op::read, kPinned, kGpu0, kGiB},
    SuiteRow{Op::write, kGpu0, kPinned, kGiB}, SuiteRow{Op::read, kGpu0, kPinned, kGiB}};

/// Enough runs for a p99 where they are short; blocks so long that neither cools the other's
/// caches.
RunPlan plan_of(const BenchOptions& options, std::uint64_t bytes) {
  RunPlan out{.bytes = bytes, .depth = options.depth};
  out.latency = bytes <= kMiB && options.depth == 1;
  out.verify = !options.no_verify;
  out.ceiling = options.with_ceiling;
  if (bytes <= 64 * kKiB) {
    out.runs = 4000;
    out.block = 100;
  } else if (bytes <= 4 * kMiB) {
    out.runs = 400;
    out.block = 20;
  } else {
    out.runs = 20;
  }
  if (options.quick) out.runs = std::min(out.runs, 20u);
  if (options.runs != 0) out.runs = options.runs;
  out.block = std::min(out.block, out.runs);
  return out;
}

bool has(const std::vector<Place>& here, Place place) {
  return std::find(here.begin(), here.end(), place) != here.end();
}

std::string what_is_missing(const std::vector<Place>& here, const SuiteRow& row) {
  const bool two = row.from == kGpu1 || row.to == kGpu1;
  return std::string("needs ") + (two ? "two GPUs" : "a GPU") + "; this machine shows " +
         (has(here, kGpu0) ? "one" : "none");
}

BenchPlan plan_foundation(const BenchOptions& options, const std::vector<Place>& here) {
  BenchPlan out;
  for (const SuiteRow& row : kFoundationRows) {
    const std::uint64_t bytes = options.quick ? std::min(row.bytes, kMiB) : row.bytes;
    const RunPlan run = plan_of(options, bytes);
    if (has(here, row.from) && has(here, row.to)) {
      out.rows.push_back({row.op, row.from, row.to, run});
      continue;
    }
    const Row named{.from = row.from.name(),
                    .to = row.to.name(),
                    .op = row.op,
                    .bytes = bytes,
                    .latency = run.latency};
    out.absent.push_back({id_of(named), what_is_missing(here, row)});
  }
  return out;
}

Status bad(std::string why, Where at = {}) {
  return {Code::invalid_argument, Scope::request, std::move(why), at};
}

Result<std::vector<Place>> places_of(const std::vector<std::string>& kinds,
                                     const std::vector<Place>& here) {
  if (kinds.empty()) return here;
  std::vector<Place> out;
  for (const Word& known : kKinds) {
    if (std::find(kinds.begin(), kinds.end(), known.word) == kinds.end()) continue;
    if (!has(here, known.place))
      return bad(std::string("--kinds: \"") + known.word +
                 "\" is not on this machine; `linkspan doctor` says what it has");
    out.push_back(known.place);
  }
  return out;
}

}  // namespace

std::vector<std::string> bench_kinds() {
  std::vector<std::string> out;
  out.reserve(kKinds.size());
  for (const Word& known : kKinds) out.emplace_back(known.word);
  return out;
}

std::vector<std::string> bench_suites() { return {kFoundation}; }

std::vector<std::string> bench_ops() { return {"write", "read", "both"}; }

Result<BenchPlan> plan_bench(const BenchOptions& options, const std::vector<Place>& here) {
  if (options.enforce && !options.with_ceiling)
    return bad("--enforce holds rows against their bars: give --with-ceiling too");
  if (!options.suite.empty()) {
    if (!options.sizes.empty() || !options.kinds.empty() || !options.op.empty() ||
        options.depth != 1)
      return bad("--suite " + options.suite +
                 " says what is measured: leave out --sizes, --kinds, --op and --depth");
    return plan_foundation(options, here);
  }
  const auto places = places_of(options.kinds, here);
  if (!places.ok()) return places.status();
  std::vector<std::uint64_t> sizes = options.sizes;
  if (sizes.empty()) sizes = {8, 4 * kKiB, kMiB};
  if (options.sizes.empty() && !options.quick) sizes.push_back(64 * kMiB);
  for (const std::uint64_t bytes : sizes)
    if (bytes > kMaxMemory / options.depth)
      return bad("--depth: " + std::to_string(options.depth) + " transfers of " + size_name(bytes) +
                 " at once need more than 64 GiB; make one of them smaller");
  BenchPlan out;
  for (const Op op : {Op::write, Op::read}) {
    if (options.op != "both" && (op == Op::read) != (options.op == "read")) continue;
    for (const Place from : *places)
      for (const Place to : *places)
        for (const std::uint64_t bytes : sizes)
          out.rows.push_back({op, from, to, plan_of(options, bytes)});
  }
  return out;
}

}  // namespace linkspan::tool
