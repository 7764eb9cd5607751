#include "tools/linkspan/doctor/diagnosis.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "linkspan/linkspan.h"
#include "tools/linkspan/command_line/table.hpp"

namespace linkspan::tool {

const char* name_of(Level level) noexcept {
  constexpr std::array kNames = {"ok", "warn", "FAIL"};
  return kNames[static_cast<std::size_t>(level)];
}

std::size_t Diagnosis::count(Level level) const {
  return static_cast<std::size_t>(std::count_if(
      checks_.begin(), checks_.end(), [level](const Check& c) { return c.level == level; }));
}

bool Diagnosis::fails_in(const std::string& area) const {
  return std::any_of(checks_.begin(), checks_.end(),
                     [&area](const Check& c) { return c.level == Level::fail && c.area == area; });
}

std::string Diagnosis::text() const {
  Table table({{""}, {""}, {""}, {""}});
  for (const Check& check : checks_) {
    table.add({name_of(check.level), check.area, check.name, check.found});
    if (!check.remedy.empty()) table.add({"", "", "", "-> " + check.remedy});
  }
  const auto many = [this](Level level, const char* what) {
    return std::to_string(count(level)) + ' ' + what;
  };
  const std::string checks = table.text().substr(1);  // without the line of titles, which is empty
  return checks + '\n' + many(Level::ok, "ok, ") + many(Level::warn, "to look at (warn), ") +
         many(Level::fail, "that must be mended (FAIL).\n");
}

std::string Diagnosis::json(const std::string& command) const {
  nlohmann::ordered_json out{{"what", "what works here, what does not, what to do"},
                             {"command", command},
                             {"version", linkspan_version()},
                             {"pass", count(Level::fail) == 0}};
  for (const Level level : {Level::ok, Level::warn, Level::fail})
    out["counts"][name_of(level)] = count(level);
  out["checks"] = nlohmann::ordered_json::array();
  for (const Check& check : checks_)
    out["checks"].push_back({{"level", name_of(check.level)},
                             {"area", check.area},
                             {"name", check.name},
                             {"found", check.found},
                             {"remedy", check.remedy}});
  return out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + '\n';
}

}  // namespace linkspan::tool
