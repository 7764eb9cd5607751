// The command line: reads arguments, prints what a verb found, makes exit codes of it.
// 0: all is well; 1: something failed, and the text says what; 2: the arguments are wrong.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <string>

#include "tools/linkspan/demo.hpp"
#include "tools/linkspan/demo_child.hpp"
#include "tools/linkspan/demo_text.hpp"
#include "tools/linkspan/report_json.hpp"

namespace linkspan::tool {
namespace {

constexpr const char* kVersion = "0.1.0";
constexpr const char* kClearLine = "\r\033[K";

/// To a file, or to stdout for "-".
bool write_out(const std::string& file, const std::string& text) {
  if (file == "-") return static_cast<bool>(std::cout << text << std::flush);
  std::ofstream out(file, std::ios::trunc);
  return static_cast<bool>(out << text << std::flush);
}

int demo(DemoOptions options, const std::string& json, const std::string& command) {
  if (!json.empty() && json != "-" && !std::ofstream(json, std::ios::app)) {
    std::cerr << "linkspan demo: cannot write " << json << '\n';
    return 2;
  }
  const bool terminal = ::isatty(STDERR_FILENO) == 1;
  if (terminal)
    options.progress = [](std::size_t index, std::size_t count, const std::string& pair) {
      std::cerr << kClearLine << '[' << index << '/' << count << "] " << pair << std::flush;
    };
  const DemoReport report = run_demo(options);
  if (terminal) std::cerr << kClearLine << std::flush;
  // JSON on stdout is alone there.
  (json == "-" ? std::cerr : std::cout) << to_text(report) << std::flush;
  if (!json.empty() && !write_out(json, to_json(report, command))) {
    std::cerr << "linkspan demo: cannot write " << json << '\n';
    return 1;
  }
  return report.ok() ? 0 : 1;
}

int run(int argc, char** argv) {
  CLI::App app("linkspan moves bytes between GPU and CPU memories, point to point.", "linkspan");
  app.set_version_flag("--version", std::string("linkspan ") + kVersion);
  app.require_subcommand(1);

  CLI::App* demo_verb = app.add_subcommand(
      "demo", "Two processes, every pair of memories, verified; a table of paths and speeds.");
  DemoOptions options;
  std::string json;
  unsigned seconds = 150;
  demo_verb->add_flag("--quick", options.quick, "1 MiB for each pair: shows paths, not speeds");
  demo_verb->add_option("--bytes", options.bytes, "Size of each pair's measured transfer: 64MiB")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 36))
      ->option_text("SIZE");
  demo_verb->add_option("--json", json, "Also write rows as evidence/ keeps them; -: to stdout")
      ->option_text("FILE");
  demo_verb->add_option("--limit", seconds, "After which no further pair is begun; 150")
      ->check(CLI::Range(1u, 86400u))
      ->option_text("SECONDS");

  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& wanted) {  // --help, --version
    return app.exit(wanted);
  } catch (const CLI::ParseError& error) {
    const std::string verb = argc > 1 && argv[1][0] != '-' ? argv[1] : "";
    const auto named = [&verb](const CLI::App* known) { return known->get_name() == verb; };
    const bool unknown = !verb.empty() && app.get_subcommands(named).empty();
    std::cerr << "linkspan: " << (unknown ? "there is no verb " + verb : error.what()) << '\n'
              << "Verbs: demo. `linkspan --help` and `linkspan demo --help` say more.\n";
    return 2;
  }
  options.limit = std::chrono::seconds(seconds);
  std::string command = "linkspan";
  for (int i = 1; i < argc; ++i) command += std::string(" ") + argv[i];
  return demo(options, json, command);
}

}  // namespace
}  // namespace linkspan::tool

int main(int argc, char** argv) try {
  if (argc == 2 && argv[1] == linkspan::tool::kDemoChild) return linkspan::tool::run_demo_child();
  return linkspan::tool::run(argc, argv);
} catch (const std::exception& error) {  // no memory, as a rule
  std::fprintf(stderr, "linkspan: %s\n", error.what());
  return 1;
} catch (...) {
  return 1;
}
