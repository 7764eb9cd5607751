// `linkspan options`: the settings that come from the environment, from the one table that has
// them. docs/options.md is its output.
#include <cstdint>
#include <iostream>

#include "base/options.hpp"
#include "tools/linkspan/command_line/table.hpp"
#include "tools/linkspan/command_line/verb.hpp"

namespace linkspan::tool {
namespace {

constexpr const char* kHead =
    "# Options\n"
    "\n"
    "<!-- Made by `./dev docs` from the table in src/base/options.cpp; do not edit. -->\n"
    "\n"
    "Settings that come from the environment, read when an Engine opens. What the program sets on\n"
    "`EngineOptions` wins; an empty variable counts as not set; a value that makes no sense is an\n"
    "error that names it. `linkspan doctor` shows what is in effect.\n"
    "\n"
    "| variable | value | if not set | what |\n"
    "|---|---|---|---|\n";

class OptionsVerb final : public Verb {
 public:
  const char* name() const override { return "options"; }
  const char* what() const override { return "The settings that come from the environment."; }
  void define(Arguments& arguments) override {
    arguments.flag("--markdown", markdown_, "As docs/options.md has them");
  }
  int run(const std::string& /*command*/) override {
    std::cout << (markdown_ ? markdown() : text()) << std::flush;
    return std::cout ? kSuccess : kFailed;
  }

 private:
  static std::string markdown() {
    std::string out = kHead;
    for (const base::OptionInfo& option : base::option_table())
      out += std::string("| `") + option.variable + "` | " + option.unit + " | " + option.fallback +
             " | " + option.what + " |\n";
    return out;
  }
  static std::string text() {
    Table table({{"variable"}, {"value"}, {"if not set"}, {"what"}});
    for (const base::OptionInfo& option : base::option_table())
      table.add({option.variable, option.unit, option.fallback, option.what});
    return table.text();
  }

  bool markdown_ = false;
};

}  // namespace

std::unique_ptr<Verb> options_verb() { return std::make_unique<OptionsVerb>(); }

}  // namespace linkspan::tool
