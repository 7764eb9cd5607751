// `linkspan topo`: which path each pair of memories gets between two processes, and how fast it is.
#include <algorithm>
#include <memory>
#include <vector>

#include "tools/linkspan/command_line/output.hpp"
#include "tools/linkspan/command_line/svg.hpp"
#include "tools/linkspan/command_line/table.hpp"
#include "tools/linkspan/command_line/verb.hpp"
#include "tools/linkspan/measure/evidence_json.hpp"
#include "tools/linkspan/measure/pair_run.hpp"
#include "tools/linkspan/measure/report_text.hpp"

namespace linkspan::tool {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

struct TopoOptions {
  std::uint64_t bytes = 64 * kMiB;  ///< Size of one transfer.
  unsigned limit_s = 150;
};

class Topo {
 public:
  explicit Topo(const TopoOptions& options)
      : options_(options), deadline_(base::Deadline::in(std::chrono::seconds(options.limit_s))) {}

  Report run();
  std::string text(const Report& report);
  std::string svg(const Report& report);

 private:
  Status set_up();
  void run_pairs(Report& report);
  std::vector<MatrixCell> cells(const Report& report);
  std::vector<std::string> names() const;
  /// Returns the letter of the row's path, which the notes explain.
  std::string letter(const Row& row);
  std::vector<std::string> notes() const;

  const TopoOptions options_;
  const base::Deadline deadline_;
  const Gpus gpus_ = Gpus::find();
  const std::vector<Place> places_ = gpus_.places(~0u);
  std::unique_ptr<TwoProcesses> both_;
  std::vector<std::string> paths_;  // in the order of their letters
};

Report Topo::run() {
  Report report = Report::of_machine(gpus_);
  report.stopped = set_up();
  if (report.stopped.ok()) run_pairs(report);
  return report;
}

Status Topo::set_up() {
  auto both = TwoProcesses::start(gpus_);
  if (!both.ok()) return both.status();
  both_ = *std::move(both);
  for (const Place place : places_) {
    const std::uint64_t bytes = std::max(options_.bytes, kMinRegion);
    if (Status s = both_->add_local(place, bytes); !s.ok()) return s;
    if (Status s = both_->add_remote(place, bytes); !s.ok()) return s;
  }
  return {};
}

/// Measures a write for each pair.
void Topo::run_pairs(Report& report) {
  PairRun pair_run(*both_, deadline_);
  RunPlan plan{.shape{.bytes = options_.bytes}, .runs = 5};
  plan.ceiling = false;
  plan.at_most = std::chrono::milliseconds(500);
  const Progress progress;
  const std::size_t count = places_.size() * places_.size();
  for (const Place from : places_) {
    for (const Place to : places_) {
      progress.show(report.rows.size() + 1, count, title(from.name(), to.name(), Op::write));
      const Pair pair = both_->pair(Op::write, from, to);
      report.rows.push_back(pair_run.run({&pair, 1}, plan, {}));
      report.stopped = pair_run.fatal_error();
      if (report.stopped.ok() && deadline_.passed() && report.rows.size() < count)
        report.stopped = Status(Code::timed_out, Scope::request, kTimeIsOver);
      if (!report.stopped.ok()) return;
    }
  }
}

std::string Topo::letter(const Row& row) {
  const std::string path = row.path + (row.executor == "here" ? "" : ", by the " + row.executor);
  auto found = std::find(paths_.begin(), paths_.end(), path);
  if (found == paths_.end()) found = paths_.insert(paths_.end(), path);
  return std::string(1, static_cast<char>('A' + (found - paths_.begin()) % 26));
}

std::vector<std::string> Topo::notes() const {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < paths_.size(); ++i)
    out.push_back(std::string(1, static_cast<char>('A' + i % 26)) + "  " + paths_[i]);
  return out;
}

std::vector<std::string> Topo::names() const {
  std::vector<std::string> out;
  for (const Place place : places_) out.push_back(place.name());
  return out;
}

std::vector<MatrixCell> Topo::cells(const Report& report) {
  std::vector<MatrixCell> out(places_.size() * places_.size(), {.text = "-", .hint = "not tried"});
  for (std::size_t i = 0; i < report.rows.size(); ++i) {
    const Row& row = report.rows[i];
    const std::string title_of = title(row.from, row.to, row.op) + ": ";
    const double rate = row.figure(row.ours);
    out[i] = row.status.ok()
                 ? MatrixCell{number(rate) + ' ' + letter(row), title_of + row.path, rate}
                 : MatrixCell{"FAILED", title_of + row.status.what(), 0};
    if (row.status.ok() && !row.refused.empty()) out[i].hint += "; not by " + row.refused;
  }
  return out;
}

std::string Topo::text(const Report& report) {
  const std::vector<MatrixCell> all = cells(report);
  std::vector<Table::Column> columns{{"from \\ to"}};
  for (const std::string& name : names()) columns.push_back({name, true});
  Table table(columns);
  for (std::size_t i = 0; i < places_.size(); ++i) {
    std::vector<std::string> line{places_[i].name()};
    for (std::size_t j = 0; j < places_.size(); ++j)
      line.push_back(all[i * places_.size() + j].text);
    table.add(std::move(line));
  }
  std::string out = head_of(report) + "\nGB/s from this process to another, " +
                    size_name(options_.bytes) + " a transfer:\n" + table.text() + '\n';
  for (const std::string& note : notes()) out += note + '\n';
  for (const Row& row : report.rows)
    if (!row.status.ok())
      out += "FAILED " + title(row.from, row.to, row.op) + ": " + row.status.to_string() + '\n';
  return out + (report.stopped.ok() ? "" : "STOPPED: " + report.stopped.to_string() + '\n');
}

std::string Topo::svg(const Report& report) {
  const std::vector<MatrixCell> all = cells(report);  // the notes explain their letters
  return matrix_svg("linkspan topo: GB/s, from (rows) to another process (columns)", names(),
                    names(), all, notes());
}

class TopoVerb final : public Verb {
 public:
  const char* name() const override { return "topo"; }
  const char* what() const override {
    return "A matrix of all GPUs and kinds of memory: the path of each pair, and GB/s.";
  }
  void define(Arguments& arguments) override {
    arguments.size("--bytes", options_.bytes, "Of one transfer: 64MiB");
    arguments.text("--json", json_, "FILE",
                   "Also write rows as evidence/ keeps them; -: to stdout");
    arguments.text("--svg", svg_, "FILE", "Also draw it");
    arguments.number("--limit", options_.limit_s, 1, 86400, "SECONDS",
                     "After which no further pair is begun; 150");
  }
  int run(const std::string& command) override {
    const auto output = Output::open(json_, svg_);
    if (!output.ok()) return refused(name(), output.status());
    Topo topo(options_);
    const Report report = topo.run();
    const std::string json =
        to_json(report, "one host, two processes: the path of each pair", command);
    if (Status s = output->write(topo.text(report), json, topo.svg(report)); !s.ok())
      return failed(name(), s);
    return report.ok() ? kSuccess : kFailed;
  }

 private:
  TopoOptions options_;
  std::string json_, svg_;
};

}  // namespace

std::unique_ptr<Verb> topo_verb() { return std::make_unique<TopoVerb>(); }

}  // namespace linkspan::tool
