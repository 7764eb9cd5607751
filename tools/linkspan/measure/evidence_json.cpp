#include "tools/linkspan/measure/evidence_json.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

#include "tools/linkspan/measure/row_ids.hpp"

namespace linkspan::tool {
namespace {

using Json = nlohmann::ordered_json;

/// Rounds to four digits.
double rounded(double value) {
  if (value <= 0) return 0;
  const double digits = 3 - std::floor(std::log10(value));
  const double scale = std::pow(10.0, std::abs(digits));
  return digits >= 0 ? std::round(value * scale) / scale : std::round(value / scale) * scale;
}

Json number_or_null(bool there, double value) { return there ? Json(rounded(value)) : Json(); }

Json to_json(const Row& row, const bare::Machine& machine) {
  const bool has_ceiling = row.bare.runs != 0;
  Json out{{"id", id_of(row)}};
  out["value"] = number_or_null(row.measured(), row.figure(row.ours));
  out["unit"] = row.unit();
  out["ceiling"] = number_or_null(has_ceiling, row.figure(row.bare));
  out["ceiling_how"] = row.ceiling_how;
  out["ratio"] = number_or_null(row.ratio() > 0, row.ratio());
  out["runs"] = row.ours.runs;
  out["verified"] = row.verified && row.status.ok();
  out["depth"] = row.depth;
  out["p99_us"] = number_or_null(row.measured(), row.ours.p99);
  out["max_us"] = number_or_null(row.measured(), row.ours.max);
  out["ceiling_p99_us"] = number_or_null(has_ceiling, row.bare.p99);
  for (const Beside& one : row.beside)
    out["beside"].push_back({{"how", one.how},
                             {"value", rounded(row.figure(one.timing))},
                             {"ratio", rounded(row.ratio_to(one.timing))}});
  out["path"] = row.path;
  out["executor"] = row.executor;
  if (!row.status.ok()) out["error"] = row.status.to_string();
  const Verdict verdict = judge(row, machine);
  if (verdict.bar.value > 0) {
    out["bar"] = verdict.bar.value;
    if (verdict.bar.absolute) out["bar_unit"] = row.unit();
    out["pass"] = verdict.pass;
  }
  if (verdict.suspect) out["suspect"] = true;
  return out;
}

}  // namespace

std::string to_json(const Report& report, const std::string& what, const std::string& command) {
  const bare::Machine& machine = report.machine;
  Json out{{"what", what}, {"command", command}};
  out["machine"] = {{"gpus", machine.gpus},
                    {"driver", machine.driver},
                    {"cuda", machine.cuda},
                    {"cpus", machine.cpus},
                    {"kernel", machine.kernel}};
  if (!report.no_gpu.empty()) out["no_gpu"] = report.no_gpu;
  if (!report.stopped.ok()) out["stopped"] = report.stopped.to_string();
  out["verified"] = report.ok() && std::all_of(report.rows.begin(), report.rows.end(),
                                               [](const Row& row) { return row.verified; });
  out["rows"] = Json::array();
  for (const Row& row : report.rows) out["rows"].push_back(to_json(row, machine));
  for (const Absent& absent : report.absent)
    out["absent"].push_back({{"id", absent.id}, {"why", absent.why}});
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + '\n';
}

}  // namespace linkspan::tool
