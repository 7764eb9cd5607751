// Checks the settings for the doctor: the table of options with their values, and names that look
// like an option.
#include <algorithm>
#include <string>
#include <string_view>

#include "tools/linkspan/doctor/diagnosis.hpp"
#include "transport/registry.hpp"

extern char** environ;

namespace linkspan::tool {
namespace {

constexpr const char* kArea = "settings";
constexpr std::string_view kOurs = "LINKSPAN_";

/// Reports unknown names with our prefix: a misspelt one would be ignored silently.
void check_names(Diagnosis& out) {
  const auto table = transport::option_table();
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view both(*entry);
    const std::string name(both.substr(0, both.find('=')));
    const auto same = [&name](const base::OptionInfo& option) { return name == option.variable; };
    if (!name.starts_with(kOurs) || std::any_of(table.begin(), table.end(), same)) continue;
    out.add(Level::warn, kArea, name, "is set, and no setting of linkspan has this name",
            "`linkspan options` lists them");
  }
}

}  // namespace

void check_settings(Diagnosis& out) {
  const auto options = base::Options::from_environment();
  const Status wrong = options.ok() ? transport::check_options(*options) : options.status();
  if (!wrong.ok()) {
    const std::string& why = wrong.what();
    out.add(Level::fail, kArea, why.substr(0, why.find('=')), why,
            "unset it, or set what the text asks for; no Engine opens until then");
  }
  for (const base::OptionInfo& option : transport::option_table()) {
    const char* value = base::environment(option.variable);
    const bool set = value != nullptr && *value != '\0';
    const bool refused = !wrong.ok() && wrong.what().starts_with(option.variable);
    if (refused) continue;
    out.ok(kArea, option.variable,
           !set            ? std::string(option.fallback) + " (default)"
           : option.secret ? "set (environment)"
                           : "\"" + std::string(value) + "\" (environment)");
  }
  check_names(out);
}

}  // namespace linkspan::tool
