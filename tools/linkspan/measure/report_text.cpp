#include "tools/linkspan/measure/report_text.hpp"

#include "tools/linkspan/command_line/table.hpp"
#include "tools/linkspan/measure/row_ids.hpp"

namespace linkspan::tool {
namespace {

constexpr std::size_t kReasonWidth = 60;

std::string title_of(const Row& row) { return title(row.from, row.to, row.op); }

/// Returns the parts of the row's id that are in no other column.
std::string shape_of(const Row& row) {
  std::string out = row.label.empty() ? row.shape : row.label + ' ' + row.shape;
  return row.suffix.empty() ? out : out + ' ' + row.suffix.substr(1);
}

std::string shown(const Timing& timing, double value) {
  return timing.runs != 0 ? number(value) : "-";
}

const char* data_of(const Row& row) {
  if (!row.status.ok()) return "FAILED";
  return row.verified ? "ok" : "not checked";
}

std::string stop_line(const Report& report) {
  return report.stopped.ok() ? "" : "STOPPED: " + report.stopped.to_string() + '\n';
}

Table demo_table(const Report& report) {
  Table table({{"pair"},
               {"data"},
               {"path"},
               {"by"},
               {"size", true},
               {"GB/s", true},
               {"bare", true},
               {"ratio", true},
               {"8 B us", true},
               {"bare", true},
               {"why not better"}});
  for (std::size_t i = 0; i + 1 < report.rows.size(); i += 2) {
    const Row &rate = report.rows[i], &latency = report.rows[i + 1];
    table.add({title_of(rate), data_of(rate.status.ok() ? latency : rate), rate.path, rate.executor,
               size_name(rate.bytes), shown(rate.ours, rate.figure(rate.ours)),
               shown(rate.bare, rate.figure(rate.bare)), shown(rate.bare, rate.ratio()),
               shown(latency.ours, latency.ours.p50), shown(latency.bare, latency.bare.p50),
               shortened(rate.refused, kReasonWidth)});
  }
  return table;
}

bool has_bar(const Row& row, const Verdict& verdict) {
  return verdict.bar.value > 0 && (verdict.bar.absolute ? row.ours : row.bare).runs != 0;
}

std::string held_against_bar(const Row& row, const Verdict& verdict) {
  if (verdict.bar.value <= 0) return verdict.suspect ? "SUSPECT ceiling" : "";
  std::string out = (row.latency ? "<= " : ">= ") + number(verdict.bar.value);
  if (verdict.bar.absolute) out += std::string(" ") + row.unit();
  if (!has_bar(row, verdict)) return out + " not held";
  return out + (verdict.pass ? " met" : " MISSED") + (verdict.suspect ? ", SUSPECT ceiling" : "");
}

Table bench_table(const Report& report) {
  Table table({{"pair"},
               {"what", true},
               {"depth", true},
               {"data"},
               {"path"},
               {"by"},
               {"GB/s", true},
               {"us p50", true},
               {"us p99", true},
               {"us max", true},
               {"bare p50", true},
               {"bare p99", true},
               {"runs", true},
               {"ratio", true},
               {"bar"}});
  for (const Row& row : report.rows) {
    Row rate = row;
    rate.latency = false;
    table.add({title_of(row), shape_of(row), std::to_string(row.depth), data_of(row), row.path,
               row.executor, shown(row.ours, rate.figure(row.ours)), shown(row.ours, row.ours.p50),
               shown(row.ours, row.ours.p99), shown(row.ours, row.ours.max),
               shown(row.bare, row.bare.p50), shown(row.bare, row.bare.p99),
               std::to_string(row.ours.runs), shown(row.bare, row.ratio()),
               held_against_bar(row, judge(row, report.machine))});
  }
  return table;
}

}  // namespace

std::string machine_line(const bare::Machine& machine) {
  std::string out = "machine: ";
  if (machine.gpus.empty()) out += "no GPU";
  for (std::size_t i = 0; i < machine.gpus.size(); ++i)
    out += (i == 0 ? "" : ", ") + machine.gpus[i];
  if (!machine.driver.empty()) out += ", driver " + machine.driver;
  if (!machine.cuda.empty()) out += ", CUDA " + machine.cuda;
  return out + ", " + std::to_string(machine.cpus) + " CPUs, Linux " + machine.kernel + '\n';
}

std::string gpu_remedy() {
  return "a driver for CUDA 12.0 or newer (525), with which nvidia-smi lists a GPU; in a container "
         "it must be passed in. LINKSPAN_CUDA_LIBRARY names the driver's libcuda.so.1 if it lies "
         "elsewhere.";
}

std::string head_of(const Report& report) {
  std::string out = machine_line(report.machine);
  if (!report.no_gpu.empty())
    out += "GPUs are not shown: " + report.no_gpu + "\n  To see them: " + gpu_remedy() + '\n';
  return out;
}

std::string demo_text(const Report& report) {
  std::string out = head_of(report);
  if (!report.rows.empty()) out += '\n' + demo_table(report).text() + '\n';
  std::size_t failed = 0;
  for (std::size_t i = 0; i + 1 < report.rows.size(); i += 2) {
    const Row &rate = report.rows[i], &latency = report.rows[i + 1];
    const Row& worse = rate.status.ok() ? latency : rate;
    if (worse.status.ok()) continue;
    ++failed;
    out += "FAILED " + title_of(worse) + ": " + worse.status.to_string() + '\n';
  }
  out += stop_line(report);
  const std::string count = std::to_string(report.rows.size() / 2);
  if (report.ok()) return out + count + " pairs, every byte verified.\n";
  return out + std::to_string(failed) + " of " + count + " pairs failed" +
         (report.stopped.ok() ? ".\n" : "; those after them did not run.\n");
}

std::string bench_text(const Report& report) {
  std::string out = head_of(report);
  if (!report.rows.empty()) out += '\n' + bench_table(report).text() + '\n';
  std::size_t failed = 0, verified = 0, missed = 0;
  for (const Row& row : report.rows) {
    const Verdict verdict = judge(row, report.machine);
    missed += has_bar(row, verdict) && !verdict.pass ? 1 : 0;
    verified += row.verified ? 1 : 0;
    if (row.status.ok()) continue;
    ++failed;
    out += "FAILED " + id_of(row) + ": " + row.status.to_string() + '\n';
  }
  for (const Absent& absent : report.absent)
    out += "absent " + absent.id + ": " + absent.why + '\n';
  out += stop_line(report);
  if (report.rows.empty()) return out + "Nothing was measured.\n";
  return out + std::to_string(report.rows.size()) + " rows, " + std::to_string(verified) +
         " verified, " + std::to_string(failed) + " failed, " + std::to_string(missed) +
         " below their bar.\n";
}

}  // namespace linkspan::tool
