#include "tools/linkspan/bench/suites.hpp"

#include <array>

namespace linkspan::tool {
namespace {

constexpr Shape whole(std::uint64_t bytes) { return {.bytes = bytes}; }
constexpr Shape pages(std::uint64_t count, std::uint64_t bytes) {
  return {.form = Form::pages, .count = count, .bytes = bytes};
}
constexpr Shape pages_of_regions(unsigned regions, std::uint64_t count, std::uint64_t bytes) {
  return {.form = Form::pages, .count = count, .bytes = bytes, .regions = regions};
}
constexpr Bar ratio(double value) { return {.value = value}; }
constexpr Bar figure(double value) { return {.value = value, .absolute = true}; }

/// Rows between two GPUs, and between a GPU and host memory of this process and of the other.
constexpr std::array kFoundation = {
    SuiteRow{.from = kGpu0, .to = kGpu1, .shape = whole(kGiB)},
    SuiteRow{.from = kGpu0, .to = kGpu1, .shape = whole(8)},
    SuiteRow{.from = kPinned, .to = kGpu0, .shape = whole(kGiB)},
    SuiteRow{.op = Op::read, .from = kPinned, .to = kGpu0, .shape = whole(kGiB)},
    SuiteRow{.from = kGpu0, .to = kPinned, .shape = whole(kGiB)},
    SuiteRow{.op = Op::read, .from = kGpu0, .to = kPinned, .shape = whole(kGiB)}};

/// Rows of every shape and every kind of memory within one host.
constexpr std::array kHostRows = {
    SuiteRow{.from = kGpu0, .to = kGpu1, .shape = whole(kGiB), .bar = ratio(0.99)},
    SuiteRow{.from = kGpu0,
             .to = kGpu1,
             .shape = whole(kGiB),
             .bar = ratio(0.98),
             .label = "gpu_gpu.bidir",
             .kind = PlannedRow::Kind::both_ways},
    SuiteRow{.from = kGpu0,
             .to = kGpu1,
             .shape = pages(8192, 4 * kKiB),
             .bar = ratio(0.97),
             .label = "pages"},
    SuiteRow{.from = kGpu0,
             .to = kGpu1,
             .shape = pages(2048, 16 * kKiB),
             .bar = ratio(0.97),
             .label = "pages"},
    SuiteRow{.from = kGpu0,
             .to = kGpu1,
             .shape = pages(512, 64 * kKiB),
             .bar = ratio(0.97),
             .label = "pages"},
    SuiteRow{.from = kGpu0,
             .to = kGpu1,
             .shape = pages(8192, 4 * kKiB),
             .bar = ratio(0.97),
             .label = "pages",
             .suffix = ".prepared",
             .prepared = true},
    SuiteRow{.from = kGpu0,
             .to = kGpu1,
             .shape = pages(8192, 4 * kKiB),
             .bar = ratio(0.97),
             .label = "pages",
             .suffix = ".gpu_indices",
             .against = Against::ready_on_gpu,
             .gpu_indices = true},
    SuiteRow{.from = kGpu0,
             .to = kGpu1,
             .shape = pages(8192, 4 * kKiB),
             .bar = ratio(0.952),  // a launch takes at most 1.05 of the bare one's time
             .label = "captured_post",
             .captured = true},
    SuiteRow{.from = kGpu0, .to = kGpu1, .shape = pages(100'000, 256), .label = "pages"},
    SuiteRow{.from = kGpu0,
             .to = kGpu1,
             .shape = pages_of_regions(122, 67, 4 * kKiB),
             .bar = ratio(0.90),
             .label = "pages",
             .suffix = ".sets"},
    SuiteRow{.from = kGpu0,
             .to = kGpu1,
             .shape = pages_of_regions(122, 67, 4 * kKiB),
             .bar = ratio(0.80),
             .label = "pages",
             .suffix = ".triples",
             .parts = true},
    SuiteRow{.from = kGpu0,
             .to = kGpu1,
             .shape = {.count = 16, .bytes = kMiB},
             .bar = ratio(0.97),
             .label = "blocks"},
    SuiteRow{.from = kGpu0,
             .to = kGpu1,
             .shape = {.form = Form::odd, .count = 10'000, .bytes = 4 * kGiB},
             .label = "blocks"},
    SuiteRow{.from = kGpu0,
             .to = kGpu1,
             .shape = whole(8),
             .bar = ratio(1.10),
             .against = Against::sync},
    SuiteRow{.from = kGpu0,
             .to = kGpu1,
             .shape = whole(4 * kKiB),
             .bar = ratio(1.10),
             .against = Against::sync},
    SuiteRow{.from = kGpu0,
             .to = kGpu1,
             .shape = whole(8),
             .bar = figure(6),
             .suffix = ".low_latency.p50",
             .against = Against::sync,
             .low_latency = true},
    SuiteRow{.from = kGpu0,
             .to = kGpu1,
             .shape = whole(4 * kKiB),
             .bar = figure(6),
             .suffix = ".low_latency.p50",
             .against = Against::sync,
             .low_latency = true},
    SuiteRow{.from = kGpu0, .to = kGpu1, .shape = whole(kMiB), .bar = figure(9.5)},
    SuiteRow{.from = kGpu0, .to = kGpu1, .shape = whole(kMiB), .depth = 16, .bar = figure(232)},
    SuiteRow{.from = kGpu0,
             .to = kGpu1,
             .shape = whole(8),
             .bar = figure(7.4),
             .label = "gpu_gpu",
             .suffix = ".notify.one_way.p50",
             .kind = PlannedRow::Kind::notify},
    SuiteRow{.from = kGpu0,
             .to = kGpu1,
             .shape = whole(8),
             .bar = figure(7.4),
             .label = "gpu_gpu",
             .suffix = ".notify.low_latency.one_way.p50",
             .kind = PlannedRow::Kind::notify,
             .low_latency = true},
    SuiteRow{.from = kPinned,
             .to = kGpu0,
             .shape = whole(64 * kMiB),
             .bar = ratio(0.98),
             .suffix = ".other_process"},
    SuiteRow{.from = kGpu0,
             .to = kPinned,
             .shape = whole(64 * kMiB),
             .bar = ratio(0.98),
             .suffix = ".other_process"},
    SuiteRow{.from = kHost,
             .to = kGpu0,
             .shape = whole(kGiB),
             .bar = ratio(0.85),
             .against = Against::staged},
    SuiteRow{.op = Op::read,
             .from = kHost,
             .to = kGpu0,
             .shape = whole(kGiB),
             .bar = ratio(0.85),
             .against = Against::staged},
    SuiteRow{.from = kGpu0,
             .to = kHost,
             .shape = whole(kGiB),
             .bar = ratio(0.85),
             .against = Against::staged},
    SuiteRow{.op = Op::read,
             .from = kGpu0,
             .to = kHost,
             .shape = whole(kGiB),
             .bar = ratio(0.85),
             .against = Against::staged},
    SuiteRow{.from = kShared,
             .to = kShared,
             .shape = whole(kGiB),
             .bar = ratio(0.9),
             .label = "cpu_cpu.shared"},
    SuiteRow{.op = Op::read,
             .from = kHost,
             .to = kHost,
             .shape = whole(kGiB),
             .bar = ratio(0.95),
             .label = "cpu_cpu.private"},
    SuiteRow{.from = kPinned,
             .to = kGpu0,
             .shape = whole(kGiB),
             .bar = ratio(0.93),
             .label = "host_gpu.two_links",
             .against = Against::two_links,
             .relay_gpus = 1}};

/// Rows between two hosts.
constexpr std::array kHostsRows = {
    SuiteRow{.from = kHost, .to = kHost, .shape = whole(kGiB)},
    SuiteRow{.from = kHost, .to = kHost, .shape = pages(8192, 4 * kKiB), .suffix = ".pages"},
    SuiteRow{.from = kHost,
             .to = kHost,
             .shape = whole(8),
             .suffix = ".notify.one_way.p50",
             .kind = PlannedRow::Kind::notify}};

}  // namespace

std::vector<std::string> suite_names() { return {"foundation", "host", kHostsSuite}; }

std::span<const SuiteRow> suite_rows(const std::string& suite) {
  if (suite == "foundation") return kFoundation;
  if (suite == "host") return kHostRows;
  if (suite == kHostsSuite) return kHostsRows;
  return {};
}

}  // namespace linkspan::tool
