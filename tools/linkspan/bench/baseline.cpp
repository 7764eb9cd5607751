#include "tools/linkspan/bench/baseline.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "tools/linkspan/command_line/table.hpp"
#include "tools/linkspan/measure/row_ids.hpp"

namespace linkspan::tool {
namespace {

using Json = nlohmann::json;

constexpr double kNoise = 0.05;  // a smaller change counts as none

double number_of(const Json& row, const char* name) {
  const auto found = row.find(name);
  return found != row.end() && found->is_number() ? found->get<double>() : 0;
}

std::string text_of(const Json& value, const char* name) {
  const auto found = value.find(name);
  return found != value.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::string percent(double change) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%+.1f %%", 100 * change);
  return text.data();
}

std::string shown(double value) { return value > 0 ? number(value) : "-"; }

}  // namespace

Result<Baseline> Baseline::read(const std::string& file) {
  std::ostringstream content;
  content << std::ifstream(file).rdbuf();  // of a folder: nothing, where a stream of JSON throws
  const Json json = Json::parse(content.str(), nullptr, false);
  const auto rows = json.is_object() ? json.find("rows") : json.end();
  if (rows == json.end() || !rows->is_array())
    return Status(Code::invalid_argument, Scope::request,
                  "--baseline: " + file + " is no file that --json wrote");
  Baseline out;
  out.title_ = file;
  if (const std::string commit = text_of(json, "commit"); !commit.empty())
    out.title_ += " (" + commit.substr(0, 12) + ")";
  for (const Json& row : *rows) {
    Known known{.id = text_of(row, "id"),
                .unit = text_of(row, "unit"),
                .value = number_of(row, "value"),
                .ratio = number_of(row, "ratio")};
    if (!known.id.empty()) out.rows_.push_back(std::move(known));
  }
  return out;
}

std::string Baseline::against(const Report& report) const {
  Table table({{"row"},
               {"before", true},
               {"now", true},
               {"unit"},
               {"change", true},
               {"ratio before", true},
               {"now", true},
               {""}});
  std::string added, gone;
  std::vector<std::string> ids;
  for (const Row& row : report.rows) {
    const std::string id = ids.emplace_back(id_of(row));
    const auto known =
        std::find_if(rows_.begin(), rows_.end(), [&id](const Known& one) { return one.id == id; });
    if (known == rows_.end() || known->unit != row.unit()) {
      added += "only now: " + id + '\n';
      continue;
    }
    const double now = row.measured() ? row.figure(row.ours) : 0;
    const bool both = now > 0 && known->value > 0;
    const double change = both ? now / known->value - 1 : 0;
    const double better = row.latency ? -change : change;
    table.add({id, shown(known->value), shown(now), row.unit(), both ? percent(change) : "-",
               shown(known->ratio), shown(row.ratio()),
               better > kNoise    ? "better"
               : better < -kNoise ? "WORSE"
                                  : ""});
  }
  for (const Known& known : rows_)
    if (std::find(ids.begin(), ids.end(), known.id) == ids.end())
      gone += "only before: " + known.id + '\n';
  return "\nagainst " + title_ + ":\n" + table.text() + added + gone;
}

}  // namespace linkspan::tool
