// `linkspan bench`: sizes x kinds of memory x directions between two processes, every byte
// verified, p50, p99 and max, beside the bare calls of the same run.
#include <algorithm>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include "tools/linkspan/bench/baseline.hpp"
#include "tools/linkspan/bench/bench_plan.hpp"
#include "tools/linkspan/bench/notify_run.hpp"
#include "tools/linkspan/bench/suites.hpp"
#include "tools/linkspan/command_line/output.hpp"
#include "tools/linkspan/command_line/svg.hpp"
#include "tools/linkspan/command_line/table.hpp"
#include "tools/linkspan/command_line/verb.hpp"
#include "tools/linkspan/measure/evidence_json.hpp"
#include "tools/linkspan/measure/report_text.hpp"
#include "tools/linkspan/measure/row_ids.hpp"
#include "tools/linkspan/pair/two_hosts.hpp"

namespace linkspan::tool {
namespace {

class Bench {
 public:
  /// `host` is the address of `linkspan serve`; if it is empty, the second process is started here.
  Bench(const Gpus& gpus, const BenchPlan& plan, std::chrono::seconds limit, std::string host,
        const NetworkOptions& network)
      : gpus_(gpus),
        plan_(plan),
        deadline_(base::Deadline::in(limit)),
        host_(std::move(host)),
        network_(network) {}

  Report run();

 private:
  /// Maps a Place of a process, by name, to the largest size that is used there.
  using Sizes = std::map<std::string, std::uint64_t>;

  Status set_up(std::span<const PlannedRow> rows);
  void run_rows(std::span<const PlannedRow> rows, Report& report);
  std::vector<Pair> pairs_of(const PlannedRow& row);
  static std::vector<Place> held_against(const PlannedRow& row);

  const Gpus& gpus_;
  const BenchPlan& plan_;
  const base::Deadline deadline_;
  const std::string host_;
  const NetworkOptions& network_;
  std::unique_ptr<TwoProcesses> both_;
};

Report Bench::run() {
  Report report = Report::of_machine(gpus_);
  report.absent = plan_.absent;
  const std::span<const PlannedRow> all(plan_.rows);
  // An Engine relays through a fixed number of GPUs, so rows with another number get another
  // Engine.
  while (report.stopped.ok() && report.rows.size() < all.size()) {
    const auto rest = all.subspan(report.rows.size());
    const auto end = std::find_if(rest.begin(), rest.end(), [&](const PlannedRow& row) {
      return row.run.relay_gpus != rest.front().run.relay_gpus;
    });
    const auto rows = rest.first(static_cast<std::size_t>(end - rest.begin()));
    report.stopped = set_up(rows);
    if (report.stopped.ok()) run_rows(rows, report);
  }
  for (const PlannedRow& row : all.subspan(report.rows.size()))
    report.absent.push_back({id_of(row.run.row(row.op, row.from, row.to)), "not come to"});
  return report;
}

Status Bench::set_up(std::span<const PlannedRow> rows) {
  both_.reset();
  auto both = host_.empty() ? TwoProcesses::start(gpus_, rows.front().run.relay_gpus)
                            : connect_host(gpus_, host_, network_);
  if (!both.ok()) return both.status();
  both_ = *std::move(both);
  Sizes near, far;
  const auto need = [](Sizes& sizes, Place place, std::uint64_t bytes) {
    std::uint64_t& size = sizes[place.name()];
    size = std::max({size, bytes, place.region == 0 ? kMinRegion : 0});
  };
  for (const PlannedRow& row : rows) {
    const std::uint64_t bytes = Layout::of(row.run.shape).extent * row.run.depth;
    for (unsigned i = 0; i < row.run.shape.regions; ++i) {
      need(near, row.local().with_region(i), bytes);
      need(far, row.remote().with_region(i), bytes);
    }
    if (row.kind == PlannedRow::Kind::both_ways) {
      need(near, row.remote(), bytes);
      need(far, row.local(), bytes);
    }
    if (!row.run.ceiling) continue;
    for (const Place place : held_against(row)) need(near, place, bytes);
  }
  for (const auto& [name, bytes] : near)
    if (Status s = both_->add_local(*Place::parse(name), bytes); !s.ok()) return s;
  for (const auto& [name, bytes] : far)
    if (Status s = both_->add_remote(*Place::parse(name), bytes); !s.ok()) return s;
  return {};
}

/// Returns memories of this process that a bare call may use in place of the other process's.
std::vector<Place> Bench::held_against(const PlannedRow& row) {
  if (!row.from.on_gpu() && !row.to.on_gpu()) return {kHost, kShared};
  if (row.from.on_gpu() && row.to.on_gpu()) return {};
  const Place host = row.from.on_gpu() ? row.to : row.from;
  return host == kPinned ? std::vector{kPinned} : std::vector{kPinned, kHost};
}

std::vector<Pair> Bench::pairs_of(const PlannedRow& row) {
  std::vector<Pair> out;
  for (unsigned i = 0; i < row.run.shape.regions; ++i)
    out.push_back(both_->pair(row.op, row.from.with_region(i), row.to.with_region(i)));
  if (row.kind == PlannedRow::Kind::both_ways) out.push_back(both_->pair(row.op, row.to, row.from));
  return out;
}

void Bench::run_rows(std::span<const PlannedRow> rows, Report& report) {
  PairRun pair_run(*both_, deadline_);
  NotifyRun notify_run(*both_);
  const Progress progress;
  Status blocks;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const PlannedRow& row = rows[i];
    progress.show(report.rows.size() + 1, plan_.rows.size(),
                  title(row.from.name(), row.to.name(), row.op));
    const std::vector<Pair> pairs = pairs_of(row);
    if (row.kind == PlannedRow::Kind::notify) {
      report.rows.push_back(notify_run.run(pairs.front(), row.run));
    } else {
      if (i == 0 || !row.same_pair(rows[i - 1]))
        blocks = row.run.verify ? pair_run.verify_blocks(pairs.front()) : Status();
      report.rows.push_back(pair_run.run(pairs, row.run, blocks));
    }
    report.stopped =
        pair_run.fatal_error().ok() ? notify_run.fatal_error() : pair_run.fatal_error();
    if (report.stopped.ok() && deadline_.passed() && report.rows.size() < plan_.rows.size())
      report.stopped = Status(Code::timed_out, Scope::request, kTimeIsOver);
    if (!report.stopped.ok()) return;
  }
}

bool every_bar_met(const Report& report) {
  return report.absent.empty() &&
         std::all_of(report.rows.begin(), report.rows.end(), [&report](const Row& row) {
           const Verdict verdict = judge(row, report.machine);
           return verdict.bar.value <= 0 || verdict.pass;
         });
}

/// Draws the rates, then the times.
std::string bench_svg(const Report& report) {
  std::vector<Chart> charts{{"GB/s, more is better", {}}, {"us, less is better", {}}};
  for (const Row& row : report.rows) {
    if (!row.measured()) continue;
    const double value = row.figure(row.ours), ceiling = row.figure(row.bare);
    std::string text = number(value) + ' ' + row.unit();
    if (row.ratio() > 0) text += ", " + number(row.ratio()) + " of the bare call";
    charts[row.latency ? 1 : 0].bars.push_back({id_of(row), text, value, ceiling});
  }
  std::erase_if(charts, [](const Chart& chart) { return chart.bars.empty(); });
  return bars_svg("linkspan bench: bars the library, ticks the bare calls of the same run", charts);
}

/// Returns MemAvailable, or an upper bound if the kernel does not report it.
std::uint64_t free_memory() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::uint64_t kib = 0;
  while (file >> key)
    if (key == "MemAvailable:" && file >> kib) return kib << 10;
  return std::numeric_limits<std::uint64_t>::max();
}

Equipment equipment_of(const Gpus& gpus) {
  Equipment out{.places = gpus.places(), .host_bytes = free_memory()};
  for (const Place place : out.places) {
    if (!place.on_gpu()) continue;
    const std::uint64_t bytes = gpus.info(place.gpu).memory_bytes;
    out.gpu_bytes = out.gpu_bytes == 0 ? bytes : std::min(out.gpu_bytes, bytes);
  }
  return out;
}

class BenchVerb final : public Verb {
 public:
  const char* name() const override { return "bench"; }
  const char* what() const override {
    return "Sizes x kinds of memory x directions between two processes, every byte verified, p50, "
           "p99 and max.";
  }
  void define(Arguments& arguments) override {
    arguments.text("--to", host_, "HOST:PORT",
                   "The second process is `linkspan serve` of another host; --suite hosts, if "
                   "nothing else is said");
    network_.define(arguments);
    arguments.choice("--suite", options_.suite, suite_names(),
                     "Rows that evidence/ keeps and that have a bar, instead of sizes and kinds");
    arguments.text("--only", options_.only, "TEXT", "With --suite: the rows whose id has it alone");
    arguments.sizes("--sizes", options_.sizes, "Of one transfer; 8,4KiB,1MiB,64MiB");
    arguments.choices(
        "--kinds", options_.kinds, bench_kinds(),
        "Memories of each process, of device0, device1, pinned, host, shared; all here");
    arguments.choice("--op", options_.op, bench_ops(),
                     "Who asks: the source's process (write) or the destination's; write");
    arguments.number("--blocks", options_.blocks, 1, 1'000'000, "N",
                     "Blocks of each size in one transfer, side by side; 1");
    arguments.number("--pages", options_.pages, 1, 1'000'000, "N",
                     "Pages of each size in one transfer, scattered on both sides");
    arguments.number("--runs", options_.runs, 1, 1'000'000, "N", "Measured runs a row; by size");
    arguments.number("--depth", options_.depth, 1, 256, "N",
                     "Transfers of a run: all are submitted, then all are waited for; 1");
    arguments.flag("--checksum", options_.checksum,
                   "With --to: ask for a checksum of what goes over the network");
    arguments.flag("--with-ceiling", options_.with_ceiling,
                   "Run the bare call too, in turns, on the same memory where it can");
    arguments.flag("--enforce", options_.enforce,
                   "Exit code 1 also where a bar is missed or its row is absent");
    arguments.flag(
        "--quick", options_.quick,
        "20 runs of what is at most 1 MiB, or 32 over two links: shows paths, not speeds");
    arguments.flag("--no-verify", options_.no_verify, "Look at no data");
    arguments.text("--json", json_, "FILE",
                   "Also write rows as evidence/ keeps them; -: to stdout");
    arguments.text("--svg", svg_, "FILE", "Also draw the rows as bars, with their ceilings");
    arguments.text("--baseline", baseline_, "FILE",
                   "Also tell what changed against an earlier run's --json");
    arguments.number("--limit", options_.limit_s, 1, 86400, "SECONDS",
                     "After which no further row is begun; 150, of --suite host 420");
  }

  int run(const std::string& command) override {
    if (Status s = between_hosts(); !s.ok()) return refused(name(), s);
    const Gpus gpus = Gpus::find();
    const auto plan = plan_bench(options_, equipment_of(gpus));
    if (!plan.ok()) return refused(name(), plan.status());
    const auto output = Output::open(json_, svg_);
    if (!output.ok()) return refused(name(), output.status());
    std::optional<Baseline> baseline;
    if (!baseline_.empty()) {
      auto read = Baseline::read(baseline_);
      if (!read.ok()) return refused(name(), read.status());
      baseline = *std::move(read);
    }
    const Report report =
        Bench(gpus, *plan, std::chrono::seconds(options_.limit()), host_, network_).run();
    const char* const what = !host_.empty() ? "two hosts: this one and one that serves"
                             : options_.suite == "host"
                                 ? "one host: shapes and kinds of memory against the bare ceiling"
                                 : "one host, two processes: rows against the bare call";
    const std::string json = to_json(report, what, command);
    const std::string text = bench_text(report) + (baseline ? baseline->against(report) : "");
    if (Status s = output->write(text, json, bench_svg(report)); !s.ok()) return failed(name(), s);
    return report.ok() && (!options_.enforce || every_bar_met(report)) ? kSuccess : kFailed;
  }

 private:
  /// Checks and adapts the options for --to.
  Status between_hosts() {
    const auto bad = [](const char* why) {
      return Status(Code::invalid_argument, Scope::request, why);
    };
    if (host_.empty() && options_.checksum)
      return bad("--checksum: only what goes over a network has one; --to names the other host");
    if (host_.empty())
      return options_.suite == kHostsSuite ? bad("--suite hosts: --to names the other host")
                                           : Status();
    if (options_.with_ceiling) return bad("--with-ceiling: no bare call reaches another host");
    if (options_.suite.empty() && options_.sizes.empty() && options_.kinds.empty() &&
        options_.op.empty() && options_.blocks == 0 && options_.pages == 0 && !options_.checksum)
      options_.suite = kHostsSuite;
    if (options_.suite.empty() && options_.kinds.empty()) options_.kinds = {"host"};
    return {};
  }

  BenchOptions options_;
  NetworkOptions network_;
  std::string json_, svg_, baseline_, host_;
};

}  // namespace

std::unique_ptr<Verb> bench_verb() { return std::make_unique<BenchVerb>(); }

}  // namespace linkspan::tool
