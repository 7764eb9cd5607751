#include "tools/linkspan/demo_text.hpp"

#include "tools/linkspan/table.hpp"

namespace linkspan::tool {
namespace {

constexpr std::size_t kReasonWidth = 60;

std::string title(const PairReport& pair) {
  return pair.from + " -> " + pair.to + (pair.op == Op::read ? " (read)" : "");
}

std::string machine_line(const bare::Machine& machine) {
  std::string out = "machine: ";
  if (machine.gpus.empty()) out += "no GPU";
  for (std::size_t i = 0; i < machine.gpus.size(); ++i)
    out += (i == 0 ? "" : ", ") + machine.gpus[i];
  if (!machine.driver.empty()) out += ", driver " + machine.driver;
  if (!machine.cuda.empty()) out += ", CUDA " + machine.cuda;
  return out + ", " + std::to_string(machine.cpus) + " CPUs, Linux " + machine.kernel + '\n';
}

Table pairs_table(const DemoReport& report) {
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
  for (const PairReport& pair : report.pairs) {
    const Figure &rate = pair.rate, &latency = pair.latency;
    const auto shown = [](const Figure& f, double value) { return f.runs ? number(value) : "-"; };
    table.add({title(pair), pair.status.ok() ? "ok" : "FAILED", pair.path, pair.executor,
               size_name(pair.bytes), shown(rate, rate.value), shown(rate, rate.bare),
               shown(rate, rate.ratio()), shown(latency, latency.value),
               shown(latency, latency.bare), shortened(pair.refused, kReasonWidth)});
  }
  return table;
}

}  // namespace

std::string to_text(const DemoReport& report) {
  std::string out = machine_line(report.machine);
  if (!report.no_gpu.empty())
    out += "GPUs are not shown: " + report.no_gpu +
           "\n  To see them: a driver for CUDA 12.0 or newer (525), with which nvidia-smi lists a "
           "GPU; in a container\n  it must be passed in. LINKSPAN_CUDA_LIBRARY names the driver's "
           "libcuda.so.1 if it lies elsewhere.\n";
  std::size_t failed = 0;
  if (!report.pairs.empty()) out += '\n' + pairs_table(report).text() + '\n';
  for (const PairReport& pair : report.pairs) {
    if (pair.status.ok()) continue;
    ++failed;
    out += "FAILED " + title(pair) + ": " + pair.status.to_string() + '\n';
  }
  if (!report.stopped.ok()) out += "STOPPED: " + report.stopped.to_string() + '\n';
  const std::string count = std::to_string(report.pairs.size());
  if (report.ok())
    out += count + " pairs, every byte verified.\n";
  else
    out += std::to_string(failed) + " of " + count + " pairs failed" +
           (report.stopped.ok() ? ".\n" : "; those after them did not run.\n");
  return out;
}

}  // namespace linkspan::tool
