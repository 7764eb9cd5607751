// `linkspan demo`: two processes, every pair of memories, real bytes.
//
// Measures writes for all pairs, and reads where they take another path.
#include <algorithm>
#include <memory>
#include <vector>

#include "tools/linkspan/command_line/output.hpp"
#include "tools/linkspan/command_line/verb.hpp"
#include "tools/linkspan/measure/evidence_json.hpp"
#include "tools/linkspan/measure/pair_run.hpp"
#include "tools/linkspan/measure/report_text.hpp"

namespace linkspan::tool {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

struct DemoOptions {
  bool quick = false;       ///< Uses 1 MiB for every pair.
  std::uint64_t bytes = 0;  ///< Size for every pair. Zero: 1 GiB where it fills a link.
  unsigned limit_s = 150;
};

struct DemoPair {
  Op op;
  Place from, to;
};

/// Measures two rows for each pair: the rate, and the latency of 8 bytes.
class Demo {
 public:
  explicit Demo(const DemoOptions& options)
      : options_(options), deadline_(base::Deadline::in(std::chrono::seconds(options.limit_s))) {}

  Report run();

 private:
  Status set_up();
  void run_pairs(Report& report);
  void run_pair(PairRun& pair_run, const Pair& pair, Report& report);
  std::uint64_t bytes_of(Place from, Place to) const;
  bool uses_another_path(PairRun& pair_run, Place from, Place to);

  const DemoOptions& options_;
  const base::Deadline deadline_;
  const Gpus gpus_ = Gpus::find();
  const std::vector<Place> places_ = gpus_.places();
  std::unique_ptr<TwoProcesses> both_;
};

Report Demo::run() {
  Report report = Report::of_machine(gpus_);
  report.stopped = set_up();
  if (report.stopped.ok()) run_pairs(report);
  return report;
}

Status Demo::set_up() {
  auto both = TwoProcesses::start(gpus_);
  if (!both.ok()) return both.status();
  both_ = *std::move(both);
  for (const Place place : places_) {
    std::uint64_t bytes = kMinRegion;
    for (const Place other : places_)
      bytes = std::max({bytes, bytes_of(place, other), bytes_of(other, place)});
    if (Status s = both_->add_local(place, bytes); !s.ok()) return s;
    if (Status s = both_->add_remote(place, bytes); !s.ok()) return s;
  }
  return {};
}

void Demo::run_pairs(Report& report) {
  PairRun pair_run(*both_, deadline_);
  std::vector<DemoPair> pairs;
  for (const Place from : places_) {
    for (const Place to : places_) {
      pairs.push_back({Op::write, from, to});
      if (uses_another_path(pair_run, from, to)) pairs.push_back({Op::read, from, to});
    }
  }
  const Progress progress;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const auto [op, from, to] = pairs[i];
    progress.show(i + 1, pairs.size(), title(from.name(), to.name(), op));
    run_pair(pair_run, both_->pair(op, from, to), report);
    report.stopped = pair_run.fatal_error();
    if (report.stopped.ok() && deadline_.passed() && i + 1 < pairs.size())
      report.stopped = Status(Code::timed_out, Scope::request, kTimeIsOver);
    if (!report.stopped.ok()) return;
  }
}

void Demo::run_pair(PairRun& pair_run, const Pair& pair, Report& report) {
  const Status blocks = pair_run.verify_blocks(pair);
  const unsigned small = options_.quick ? 50 : 1000;
  for (RunPlan plan : {RunPlan{.shape{.bytes = bytes_of(pair.from(), pair.to())}, .runs = 5},
                       RunPlan{.shape{.bytes = 8}, .runs = small, .block = 100, .latency = true}}) {
    plan.at_most = std::chrono::seconds(2);
    report.rows.push_back(pair_run.run({&pair, 1}, plan, blocks));
  }
}

/// Returns 1 GiB for pairs over a link, so that a start of 10 us does not matter.
std::uint64_t Demo::bytes_of(Place from, Place to) const {
  if (options_.bytes != 0) return options_.bytes;
  if (options_.quick) return kMiB;
  if (!gpus_.real()) return 64 * kMiB;
  const auto fast = [](Place p) { return p.on_gpu() || p.kind == MemoryKind::pinned; };
  const bool gpu = from.on_gpu() || to.on_gpu();
  return gpu && fast(from) && fast(to) ? 1024 * kMiB : 256 * kMiB;
}

/// Returns true if a read, requested by the other side, is not the same copy as the write.
bool Demo::uses_another_path(PairRun& pair_run, Place from, Place to) {
  const std::uint64_t bytes = bytes_of(from, to);
  const auto write = pair_run.explain(both_->pair(Op::write, from, to), bytes);
  const auto read = pair_run.explain(both_->pair(Op::read, from, to), bytes);
  if (!write.ok() || !read.ok()) return false;
  return write->path != read->path || write->executor != read->executor;
}

class DemoVerb final : public Verb {
 public:
  const char* name() const override { return "demo"; }
  const char* what() const override {
    return "Two processes, every pair of memories, verified; a table of paths and speeds.";
  }
  void define(Arguments& arguments) override {
    arguments.flag("--quick", options_.quick,
                   "1 MiB and 50 times 8 B for each pair: shows paths, not speeds");
    arguments.size("--bytes", options_.bytes, "Size of each pair's measured transfer: 64MiB");
    arguments.text("--json", json_, "FILE",
                   "Also write rows as evidence/ keeps them; -: to stdout");
    arguments.number("--limit", options_.limit_s, 1, 86400, "SECONDS",
                     "After which no further pair is begun; 150");
  }
  int run(const std::string& command) override {
    const auto output = Output::open(json_);
    if (!output.ok()) return refused(name(), output.status());
    const Report report = Demo(options_).run();
    const std::string json = to_json(
        report, "one host, two processes: every pair of memories against the bare call", command);
    if (Status s = output->write(demo_text(report), json); !s.ok()) return failed(name(), s);
    return report.ok() ? kSuccess : kFailed;
  }

 private:
  DemoOptions options_;
  std::string json_;
};

}  // namespace

std::unique_ptr<Verb> demo_verb() { return std::make_unique<DemoVerb>(); }

}  // namespace linkspan::tool
