#include "tools/linkspan/bench/bench_plan.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "copy/chooser.hpp"
#include "tools/linkspan/bench/suites.hpp"
#include "tools/linkspan/command_line/table.hpp"
#include "tools/linkspan/measure/row_ids.hpp"

namespace linkspan::tool {
namespace {

constexpr std::uint64_t kMaxMemory = 64 * kGiB;  // maximum that a Place may need
// Maximum number of regions of a row's size that a suite uses in host memory, and in a GPU's.
constexpr std::uint64_t kHostRegions = 8, kGpuRegions = 3;

struct KnownPlace {
  const char* name = nullptr;
  Place place;
};
constexpr std::array kKinds = {KnownPlace{"device0", kGpu0}, KnownPlace{"device1", kGpu1},
                               KnownPlace{"pinned", kPinned}, KnownPlace{"host", kHost},
                               KnownPlace{"shared", kShared}};

/// Plans enough runs for a p99 if they are short, in turns long enough that library and bare code
/// do not evict each other's caches.
RunPlan plan_of(const BenchOptions& options, const Shape& shape, unsigned depth) {
  RunPlan out{.shape = shape, .depth = depth};
  const std::uint64_t bytes =
      shape.form == Form::odd ? shape.bytes : shape.regions * shape.count * shape.bytes;
  out.latency = shape.count == 1 && bytes <= kMiB && depth == 1;
  out.verify = !options.no_verify;
  out.ceiling = options.with_ceiling;
  out.checksum = options.checksum;
  if (bytes <= 64 * kKiB) {
    out.runs = 4000;
    out.block = 100;
  } else if (bytes <= 4 * kMiB) {
    out.runs = 400;
    out.block = 20;
  } else if (bytes <= 64 * kMiB) {
    out.runs = 100;
    out.block = 10;
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

/// Reduces a shape to at most 1 MiB. If it has many pieces, their size stays.
Shape quick(Shape shape) {
  if (shape.form == Form::pages) {
    shape.count = std::min({shape.count, kMiB / shape.bytes, std::uint64_t{64}});
    shape.regions =
        std::min(shape.regions, static_cast<unsigned>(kMiB / shape.count / shape.bytes));
  }
  if (shape.form == Form::blocks) shape.bytes = std::min(shape.bytes, kMiB / shape.count);
  if (shape.form == Form::odd) shape = {Form::odd, 100, kMiB};
  return shape;
}

/// Returns what the row needs and this machine lacks; empty if nothing.
std::string what_is_missing(const SuiteRow& row, const Shape& shape, const Equipment& here) {
  const std::vector<Place>& places = here.places;
  const bool two = row.from == kGpu1 || row.to == kGpu1 || row.relay_gpus != 0;
  if (!has(places, row.from) || !has(places, row.to) || (two && !has(places, kGpu1))) {
    return std::string("needs ") + (two ? "two GPUs" : "a GPU") + "; this machine shows " +
           (has(places, kGpu0) ? "one" : "none");
  }
  const bool gpu = row.from.on_gpu() || row.to.on_gpu();
  const bool host = !row.from.on_gpu() || !row.to.on_gpu();
  if (gpu && shape.bytes > here.gpu_bytes / kGpuRegions)
    return "needs " + size_name(kGpuRegions * shape.bytes) + " of memory in each GPU";
  if (host && shape.bytes > here.host_bytes / kHostRegions)
    return "needs " + size_name(kHostRegions * shape.bytes) + " of free memory; this machine has " +
           size_name(here.host_bytes >> 20 << 20);
  return "";
}

BenchPlan plan_suite(const BenchOptions& options, const Equipment& here) {
  BenchPlan out;
  for (const SuiteRow& row : suite_rows(options.suite)) {
    Shape shape = options.quick ? quick(row.shape) : row.shape;
    if (row.relay_gpus != 0) shape.bytes = std::max(shape.bytes, 2 * copy::kMinRelayBytes);
    if (shape.form == Form::odd && here.gpu_bytes != 0)
      shape.bytes = std::min(shape.bytes, here.gpu_bytes / kGpuRegions);
    RunPlan run = plan_of(options, shape, row.depth);
    run.latency = plan_of(options, row.shape, row.depth).latency;
    run.label = row.label;
    run.suffix = row.suffix;
    run.against = row.against;
    run.prepared = row.prepared;
    run.captured = row.captured;
    run.parts = row.parts;
    run.gpu_indices = row.gpu_indices;
    run.low_latency = row.low_latency;
    run.relay_gpus = row.relay_gpus;
    if (shape == row.shape) run.bar = row.bar;
    const std::string id = id_of(run.row(row.op, row.from, row.to));
    if (id.find(options.only) == std::string::npos) continue;
    const std::string missing = what_is_missing(row, shape, here);
    if (missing.empty())
      out.rows.push_back({row.op, row.from, row.to, run, row.kind});
    else
      out.absent.push_back({id, missing});
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
  for (const KnownPlace& known : kKinds) {
    if (std::find(kinds.begin(), kinds.end(), known.name) == kinds.end()) continue;
    if (!has(here, known.place))
      return bad(std::string("--kinds: \"") + known.name +
                 "\" is not on this machine; `linkspan doctor` says what it has");
    out.push_back(known.place);
  }
  return out;
}

}  // namespace

std::vector<std::string> bench_kinds() {
  std::vector<std::string> out;
  out.reserve(kKinds.size());
  for (const KnownPlace& known : kKinds) out.emplace_back(known.name);
  return out;
}

std::vector<std::string> bench_ops() { return {"write", "read", "both"}; }

Result<BenchPlan> plan_bench(const BenchOptions& options, const Equipment& here) {
  if (options.enforce && !options.with_ceiling)
    return bad("--enforce holds rows against their bars: give --with-ceiling too");
  if (!options.suite.empty()) {
    if (!options.sizes.empty() || !options.kinds.empty() || !options.op.empty() ||
        options.blocks != 0 || options.pages != 0 || options.depth != 1 || options.checksum)
      return bad("--suite " + options.suite +
                 " says what is measured: leave out --sizes, --kinds, --op, --blocks, --pages, "
                 "--depth and --checksum");
    BenchPlan plan = plan_suite(options, here);
    if (plan.rows.empty() && plan.absent.empty())
      return bad("--only: no row of --suite " + options.suite + " has \"" + options.only +
                 "\" in its id");
    return plan;
  }
  if (!options.only.empty()) return bad("--only: chooses rows of a suite; --suite names one");
  if (options.blocks != 0 && options.pages != 0)
    return bad("--blocks or --pages: a transfer is the one or the other");
  const auto places = places_of(options.kinds, here.places);
  if (!places.ok()) return places.status();
  std::vector<std::uint64_t> sizes = options.sizes;
  if (sizes.empty()) sizes = {8, 4 * kKiB, kMiB};
  if (options.sizes.empty() && !options.quick) sizes.push_back(64 * kMiB);
  const unsigned many = std::max({options.blocks, options.pages, 1u});
  for (const std::uint64_t bytes : sizes)
    if (bytes > kMaxMemory / options.depth / many)
      return bad("--depth: " + std::to_string(options.depth) + " transfers of " +
                 Shape{.count = many, .bytes = bytes}.name() +
                 " at once need more than 64 GiB; make one of them smaller");
  BenchPlan out;
  for (const Op op : {Op::write, Op::read}) {
    if (options.op != "both" && (op == Op::read) != (options.op == "read")) continue;
    for (const Place from : *places) {
      for (const Place to : *places) {
        for (const std::uint64_t bytes : sizes) {
          Shape shape{.count = many, .bytes = bytes};
          if (options.pages != 0) shape.form = Form::pages;
          RunPlan run = plan_of(options, shape, options.depth);
          if (options.pages != 0) run.suffix = ".pages";
          if (options.checksum) run.suffix += ".checksum";
          out.rows.push_back({op, from, to, std::move(run)});
        }
      }
    }
  }
  return out;
}

}  // namespace linkspan::tool
