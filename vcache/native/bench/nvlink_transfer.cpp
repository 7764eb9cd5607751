// bench_nvlink_transfer: measures what libnvlink_transfer adds to the driver's own calls, for
// copies from another process's memory on GPU 0 to this process's on GPU 1.
//
// Library and bare calls alternate on the same memory; every byte is verified before the clock
// runs. Exit codes: 0 if all rows are there and right, else 1; 2 without two GPUs. With --enforce a
// missed bar gives 1 too.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/clock.hpp"
#include "bench/bare/ipc_copy.hpp"
#include "bench/bare/machine.hpp"
#include "bench/lender.hpp"
#include "linkspan/nvlink_transfer.h"

namespace linkspan::bench {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::ordered_json;

constexpr std::uint64_t kKiB4 = 4096;

// ---- rows -------------------------------------------------------------------------------------

using Run = std::function<Result<Duration>()>;

struct Plan {
  const char *id = "", *unit = "", *ceiling_how = "";
  std::uint64_t bytes = 0;
  unsigned runs = 0;
  double bar = 0;             ///< Zero: no bar.
  bool bar_is_ratio = false;  ///< False: the bar is a value.
};

struct Timing {
  double p50 = 0, p99 = 0;  ///< us
};
Timing timing_of(std::vector<Duration> runs) {
  std::sort(runs.begin(), runs.end());
  const auto us = [&](std::size_t i) { return static_cast<double>(runs[i].count()) / 1e3; };
  return {.p50 = us(runs.size() / 2), .p99 = us((runs.size() * 99 - 1) / 100)};
}

double rounded(double value) {
  if (value <= 0) return 0;
  const double scale = std::pow(10.0, 3 - std::floor(std::log10(value)));
  return std::round(value * scale) / scale;
}

/// Runs library and bare code alternately.
Result<Json> measure(const Plan& plan, const Run& ours, const Run& bare) {
  constexpr unsigned kWarm = 5;
  constexpr Duration kAtMost = 20s;
  const auto limit = base::Deadline::after(base::Clock::steady(), kAtMost);
  std::vector<Duration> mine, least;
  for (unsigned i = 0; i < plan.runs + kWarm && (mine.empty() || !limit.passed()); ++i) {
    const auto took = ours(), floor = bare();
    if (!took.ok()) return took.status();
    if (!floor.ok()) return floor.status();
    if (i < kWarm) continue;
    mine.push_back(*took);
    least.push_back(*floor);
  }
  const Timing our = timing_of(mine), its = timing_of(least);
  const bool rate = std::string_view(plan.unit) == "GB/s";
  const auto figure = [&](const Timing& t) {
    return rate ? static_cast<double>(plan.bytes) / std::max(t.p50, 1e-3) / 1e3 : t.p50;
  };
  const double value = figure(our), ratio = value / figure(its);
  Json row{{"id", plan.id},
           {"value", rounded(value)},
           {"unit", plan.unit},
           {"ceiling", rounded(figure(its))},
           {"ceiling_how", plan.ceiling_how},
           {"ratio", rounded(ratio)},
           {"runs", mine.size()},
           {"verified", true},
           {"p99_us", rounded(our.p99)},
           {"ceiling_p99_us", rounded(its.p99)}};
  if (plan.bar > 0) {
    const double against = plan.bar_is_ratio ? ratio : value;
    row["bar"] = plan.bar;
    row["pass"] = rate ? against >= plan.bar : against <= plan.bar;
  }
  return row;
}

class Bench {
 public:
  Bench(cuda::Topology& topology, bool quick) : topology_(topology), quick_(quick) {}

  Status run(Json& rows) {
    if (Status s = set_up(); !s.ok()) return s;
    for (const auto part : {&Bench::large, &Bench::cached, &Bench::uncached})
      if (Status s = (this->*part)(rows); !s.ok()) return s;
    return {};
  }

 private:
  /// Large enough that the driver gives the allocation blocks of its own.
  static constexpr std::uint64_t kSmallBytes = 4u << 20;
  static constexpr std::uint64_t kPoison = 99, kLarge = 1, kSmall = 2;

  Status set_up() {
    const auto source = device_of(topology_, kSourceGpu), target = device_of(topology_, kTargetGpu);
    if (!source.ok()) return source.status();
    if (!target.ok()) return target.status();
    source_ = *source;
    target_ = *target;
    auto lender = tool::ChildProcess::spawn(kLenderVerb, 20s);
    if (!lender.ok()) return lender.status();
    lender_ = *std::move(lender);
    auto bare = bare::IpcCopy::create(*source_);
    if (!bare.ok()) return bare.status();
    bare_ = *std::move(bare);
    return {};
  }

  /// Gets memory of the lender as a handle, and allocates and poisons memory of this process.
  Status meet(std::uint64_t bytes, std::uint64_t seed) {
    const auto handle = ask_for(*lender_, bytes, seed);
    if (!handle.ok()) return handle.status();
    handle_ = *handle;
    auto made = GpuMemory::create(*target_, bytes);
    if (!made.ok()) return made.status();
    here_.emplace(*std::move(made));
    return {};
  }
  bare::Target to() const { return {here_->address(), target_->context()}; }

  Result<Duration> ours(std::uint64_t bytes, void* stream) const {
    const auto begin = base::Clock::steady().now();
    const int code = perform_direct_transfer(kSourceGpu, 0, kTargetGpu, here_->address(), bytes,
                                             handle_.reserved, sizeof handle_.reserved, nullptr, 0,
                                             0, 0, stream);
    const Duration took = base::Clock::steady().now() - begin;
    if (code == NVLINK_TRANSFER_OK) return took;
    return Status(Code::cuda, Scope::request, nvlink_transfer_last_error());
  }
  /// Poisons the target, runs once and verifies all bytes.
  Status verify(const Run& run, std::uint64_t bytes, std::uint64_t seed) {
    if (Status s = here_->fill(kPoison); !s.ok()) return s;
    if (const auto took = run(); !took.ok()) return took.status();
    return here_->check(bytes, seed, kPoison);
  }
  /// Verifies both, then measures them, with the source's context current.
  Status row(const Plan& plan, std::uint64_t seed, const Run& ours, const Run& bare, Json& rows) {
    const auto scope = source_->enter();
    if (!scope.ok()) return scope.status();
    for (const Run& each : {ours, bare})
      if (Status s = verify(each, plan.bytes, seed); !s.ok()) return s;
    auto json = measure(plan, ours, bare);
    if (!json.ok()) return json.status();
    rows.push_back(*std::move(json));
    return {};
  }
  /// Runs `body` while bare code has the memory mapped and the library keeps its handle.
  Status mapped(const std::function<Status(cuda::CUdeviceptr from)>& body) {
    const auto scope = source_->enter();
    if (!scope.ok()) return scope.status();
    const auto from = bare_->open(handle_);
    if (!from.ok()) return from.status();
    (void)nvlink_transfer_set_handle_cache(16);
    const Status done = body(*from);
    (void)nvlink_transfer_set_handle_cache(0);
    const Status closed = bare_->close(*from);
    return done.ok() ? closed : done;
  }

  Status large(Json& rows) {
    const Plan plan{.id = "remote_local.1GiB",
                    .unit = "GB/s",
                    .ceiling_how = "cuMemcpyPeerAsync of the mapped memory, cuStreamSynchronize",
                    .bytes = quick_ ? std::uint64_t{8} << 20 : std::uint64_t{1} << 30,
                    .runs = quick_ ? 3u : 20u,
                    .bar = 0.98,
                    .bar_is_ratio = true};
    if (Status s = meet(plan.bytes, kLarge); !s.ok()) return s;
    return mapped([&](cuda::CUdeviceptr from) {
      return row(
          plan, kLarge, [&] { return ours(plan.bytes, bare_->stream()); },
          [&] { return bare_->copy(to(), from, plan.bytes); }, rows);
    });
  }

  Status cached(Json& rows) {
    Plan plan{.id = "remote_local.4KiB.cached.p50",
              .unit = "us",
              .ceiling_how = "cuMemcpyPeerAsync of the mapped memory, cuStreamSynchronize",
              .bytes = kKiB4,
              .runs = quick_ ? 50u : 5000u,
              .bar = 9};
    if (Status s = meet(kSmallBytes, kSmall); !s.ok()) return s;
    return mapped([&](cuda::CUdeviceptr from) {
      const Run bare = [&] { return bare_->copy(to(), from, kKiB4); };
      if (Status s = row(
              plan, kSmall, [&] { return ours(kKiB4, bare_->stream()); }, bare, rows);
          !s.ok())
        return s;
      plan.id = "remote_local.4KiB.cached.null_stream.p50";
      plan.bar = 0;
      return row(
          plan, kSmall, [&] { return ours(kKiB4, nullptr); }, bare, rows);
    });
  }

  Status uncached(Json& rows) {
    const Plan plan{.id = "remote_local.4KiB.uncached.p50",
                    .unit = "us",
                    .ceiling_how =
                        "cuIpcOpenMemHandle, cuMemcpyPeerAsync, cuStreamSynchronize, "
                        "cuIpcCloseMemHandle",
                    .bytes = kKiB4,
                    .runs = quick_ ? 50u : 1000u,
                    .bar = 1.08,
                    .bar_is_ratio = true};
    return row(
        plan, kSmall, [&] { return ours(kKiB4, bare_->stream()); },
        [&] { return bare_->open_copy_close(to(), handle_, 0, kKiB4); }, rows);
  }

  cuda::Topology& topology_;
  const bool quick_;
  const cuda::Device *source_ = nullptr, *target_ = nullptr;
  std::unique_ptr<tool::ChildProcess> lender_;
  std::unique_ptr<bare::IpcCopy> bare_;
  cuda::CUipcMemHandle handle_{};
  std::optional<GpuMemory> here_;
};

// ---- the program ------------------------------------------------------------------------------

void print(const Json& rows) {
  for (const Json& row : rows) {
    std::cout << row["id"].get<std::string>() << ": " << row["value"] << ' '
              << row["unit"].get<std::string>() << ", bare " << row["ceiling"] << ", ratio "
              << row["ratio"];
    if (row.contains("bar"))
      std::cout << ", bar " << row["bar"] << (row["pass"].get<bool>() ? " met" : " MISSED");
    std::cout << '\n';
  }
}

int run(bool quick, bool enforce, const std::string& file, const std::string& command) {
  auto topology = cuda::Topology::create();
  if (!topology.ok() || (*topology)->devices().size() < 2) {
    std::cout << "bench_nvlink_transfer needs two GPUs: "
              << (topology.ok() ? "there is one" : topology.status().to_string()) << '\n';
    return 2;
  }
  Json rows = Json::array();
  const Status end = Bench(**topology, quick).run(rows);
  const bare::Machine machine = bare::describe_machine(topology->get());
  Json out{{"what", "libnvlink_transfer against the driver's own calls"}, {"command", command}};
  out["machine"] = {{"gpus", machine.gpus},
                    {"driver", machine.driver},
                    {"cuda", machine.cuda},
                    {"cpus", machine.cpus},
                    {"kernel", machine.kernel}};
  if (quick) out["quick"] = true;  // rows are smaller than their names say
  if (!end.ok()) out["stopped"] = end.to_string();
  out["verified"] = end.ok();
  out["rows"] = rows;
  print(rows);
  if (!end.ok()) std::cout << "stopped: " << end.to_string() << '\n';
  if (!file.empty() && !(std::ofstream(file) << out.dump(2) << '\n').flush()) {
    std::cout << "cannot write " << file << '\n';
    return 1;
  }
  const bool missed = std::any_of(rows.begin(), rows.end(),
                                  [](const Json& row) { return !row.value("pass", true); });
  return end.ok() && !(enforce && missed) ? 0 : 1;
}

}  // namespace
}  // namespace linkspan::bench

int main(int argc, char** argv) try {
  if (argc == 2 && std::string_view(argv[1]) == linkspan::bench::kLenderVerb)
    return linkspan::bench::lend();
  CLI::App app("libnvlink_transfer against the driver's own calls, between two processes.");
  bool quick = false, enforce = false;
  std::string file, command = "bench_nvlink_transfer";
  app.add_flag("--quick", quick, "Small and few: shows that it works, not speeds");
  app.add_flag("--enforce", enforce, "Exit code 1 also where a bar is missed");
  app.add_option("--json", file, "Also write rows as evidence/ keeps them")->type_name("FILE");
  CLI11_PARSE(app, argc, argv);
  for (int i = 1; i < argc; ++i) command += std::string(" ") + argv[i];
  return linkspan::bench::run(quick, enforce, file, command);
} catch (const std::exception& error) {  // from CLI11 or Json
  std::fprintf(stderr, "bench_nvlink_transfer: %s\n", error.what());
  return 1;
}
