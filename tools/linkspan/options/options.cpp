// `linkspan options`: the settings that come from the environment, from the tables that have
// them. docs/options.md is its output.
#include <cstdint>
#include <iostream>
#include <string_view>

#include "tools/linkspan/command_line/table.hpp"
#include "tools/linkspan/command_line/verb.hpp"
#include "transport/registry.hpp"

namespace linkspan::tool {
namespace {

constexpr const char* kHead =
    "# Options\n"
    "\n"
    "<!-- Made by `./dev docs` from the tables in src/base and src/transport; do not "
    "edit. -->\n"
    "\n"
    "Settings that come from the environment, read when an Engine opens. What the program sets on\n"
    "`EngineOptions` wins; an empty variable counts as not set; a value that makes no sense is an\n"
    "error that names it. `linkspan doctor` shows what is in effect.\n"
    "\n"
    "| variable | value | if not set | what |\n"
    "|---|---|---|---|\n";

constexpr const char* kKeys =
    "\n"
    "`EngineOptions::transport`, in C, C++ and Python, takes those of a transport by key, as "
    "text:\n"
    "\n"
    "| key | as the variable |\n"
    "|---|---|\n";

class OptionsVerb final : public Verb {
 public:
  const char* name() const override { return "options"; }
  const char* what() const override { return "The settings that come from the environment."; }
  void define(Arguments& arguments) override {
    arguments.flag("--markdown", markdown_, "As docs/options.md has them");
  }
  int run(const std::string& /*command*/) override {
    std::cout << (markdown_ ? markdown() : text()) << std::flush;
    return kSuccess;
  }

 private:
  static std::string markdown() {
    std::string out = kHead;
    for (const base::OptionInfo& option : transport::option_table())
      out += std::string("| `") + option.variable + "` | " + option.unit + " | " + option.fallback +
             " | " + option.what + " |\n";
    out += kKeys;
    for (const base::OptionInfo& option : transport::option_table())
      if (const std::string_view name(option.name); name.find('.') != name.npos)
        if (name.find(' ') == name.npos)
          out += "| `" + std::string(name) + "` | `" + option.variable + "` |\n";
    return out;
  }
  static std::string text() {
    Table table({{"variable"}, {"value"}, {"if not set"}, {"what"}});
    for (const base::OptionInfo& option : transport::option_table())
      table.add({option.variable, option.unit, option.fallback, option.what});
    return table.text();
  }

  bool markdown_ = false;
};

}  // namespace

std::unique_ptr<Verb> options_verb() { return std::make_unique<OptionsVerb>(); }

}  // namespace linkspan::tool
