// Checks the settings for the doctor: the table of options with their values, and names that look
// like an option.
#include <algorithm>
#include <string>
#include <string_view>

#include "engine/diagnostics/metrics_server.hpp"
#include "tools/linkspan/doctor/diagnosis.hpp"
#include "transport/registry.hpp"

extern char** environ;

namespace linkspan::tool {
namespace {

constexpr const char* kArea = kSettings;
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

/// Returns the error of the first setting with which no Engine opens, in the Engine's words.
Status wrong_setting() {
  auto options = base::Options::from_environment();
  if (!options.ok()) return options.status();
  if (Status s = options->resolve_security(); !s.ok()) return s;
  if (Status s = transport::check_options(*options); !s.ok()) return s;
  if (const auto secret = base::read_secret(*options); !secret.ok()) return secret.status();
  return engine::metrics_address(*options).status();
}

/// Returns the variable with which the text begins; of the secret's file it has the path instead.
std::string variable_in(const std::string& text) {
  if (text.starts_with("secret file ")) return "LINKSPAN_SECRET_FILE";
  const auto in_name = [](char c) {
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z');
  };
  return {text.begin(), std::find_if_not(text.begin(), text.end(), in_name)};
}

}  // namespace

void check_settings(Diagnosis& out) {
  const Status wrong = wrong_setting();
  const std::string refused = wrong.ok() ? std::string() : variable_in(wrong.what());
  if (!wrong.ok())
    out.add(Level::fail, kArea, refused, wrong.what(),
            "unset it, or set what the text asks for; no Engine opens until then");
  for (const base::OptionInfo& option : transport::option_table()) {
    const char* value = base::environment(option.variable);
    const bool set = value != nullptr && *value != '\0';
    if (refused == option.variable) continue;
    out.ok(kArea, option.variable,
           !set            ? std::string(option.fallback) + " (default)"
           : option.secret ? "set (environment)"
                           : "\"" + std::string(value) + "\" (environment)");
  }
  check_names(out);
}

}  // namespace linkspan::tool
