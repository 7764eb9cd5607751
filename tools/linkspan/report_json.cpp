#include "tools/linkspan/report_json.hpp"

#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "tools/linkspan/table.hpp"

namespace linkspan::tool {
namespace {

using Json = nlohmann::ordered_json;

/// Rows that have a bar, and the ceilings that were measured on two H200.
struct Known {
  std::string_view id;
  double bar, ceiling;
};
constexpr Known kKnown[] = {{"gpu_gpu.1GiB", 0.97, 396.7},
                            {"pinned_gpu.1GiB", 0.96, 55.5},
                            {"gpu_pinned.1GiB", 0.96, 55.4}};
constexpr double kSuspect = 0.15;  // so far off the known ceiling something is wrong

/// "gpu" is gpu0, but "gpu_gpu" goes from gpu0 to gpu1.
std::string pair_id(const PairReport& pair) {
  const auto is_gpu = [](const std::string& name) { return name.starts_with("gpu"); };
  if (is_gpu(pair.from) && is_gpu(pair.to))
    return pair.from == "gpu0" && pair.to == "gpu1" ? "gpu_gpu" : pair.from + "_" + pair.to;
  const auto plain = [](const std::string& name) { return name == "gpu0" ? "gpu" : name; };
  return plain(pair.from) + "_" + plain(pair.to);
}

double rounded(double value) {
  if (value == 0) return 0;
  const double step = std::pow(10.0, std::floor(std::log10(value)) - 3);
  return std::round(value / step) * step;
}

Json row(const DemoReport& report, const PairReport& pair, std::string id, const char* unit,
         const Figure& figure) {
  if (pair.op == Op::read) id += ".read";
  Json out{{"id", id}};
  const bool measured = figure.runs != 0;
  out["value"] = measured ? Json(rounded(figure.value)) : Json();
  out["unit"] = unit;
  out["ceiling"] = measured ? Json(rounded(figure.bare)) : Json();
  out["ceiling_how"] = pair.ceiling_how;
  out["ratio"] = measured ? Json(rounded(figure.ratio())) : Json();
  out["runs"] = figure.runs;
  out["verified"] = pair.status.ok();
  out["path"] = pair.path;
  out["executor"] = pair.executor;
  if (!pair.status.ok()) out["error"] = pair.status.to_string();
  for (const Known& known : kKnown) {
    if (known.id != id) continue;
    out["bar"] = known.bar;
    out["pass"] = pair.status.ok() && measured && figure.ratio() >= known.bar;
    const bool same_machine =
        !report.machine.gpus.empty() && report.machine.gpus[0].find("H200") != std::string::npos;
    if (measured && same_machine && std::abs(figure.bare / known.ceiling - 1) > kSuspect)
      out["suspect"] = true;
  }
  return out;
}

}  // namespace

std::string to_json(const DemoReport& report, const std::string& command) {
  const bare::Machine& machine = report.machine;
  Json out{{"what", "one host, two processes: every pair of memories against the bare call"},
           {"command", command}};
  out["machine"] = {{"gpus", machine.gpus},
                    {"driver", machine.driver},
                    {"cuda", machine.cuda},
                    {"cpus", machine.cpus},
                    {"kernel", machine.kernel}};
  if (!report.no_gpu.empty()) out["no_gpu"] = report.no_gpu;
  if (!report.stopped.ok()) out["stopped"] = report.stopped.to_string();
  out["verified"] = report.ok();
  out["rows"] = Json::array();
  for (const PairReport& pair : report.pairs) {
    const std::string id = pair_id(pair);
    out["rows"].push_back(row(report, pair, id + '.' + size_name(pair.bytes), "GB/s", pair.rate));
    out["rows"].push_back(row(report, pair, id + ".8B.submit_to_done.p50", "us", pair.latency));
  }
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + '\n';
}

}  // namespace linkspan::tool
