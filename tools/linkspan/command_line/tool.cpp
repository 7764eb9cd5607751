#include "tools/linkspan/command_line/tool.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>

#include "linkspan/linkspan.h"
#include "tools/linkspan/command_line/verb.hpp"
#include "tools/linkspan/doctor/visible_gpus.hpp"
#include "tools/linkspan/pair/helper_process.hpp"

namespace linkspan::tool {
namespace {

/// Prints what CLI11 found wrong, and which help to read.
int refuse(const CLI::App& app, const std::string& first, const std::string& why) {
  const auto verbs = app.get_subcommands([](const CLI::App*) { return true; });
  const auto named = [&first](const CLI::App* verb) { return verb->get_name() == first; };
  const bool known = std::any_of(verbs.begin(), verbs.end(), named);
  const bool verb = !first.empty() && first.front() != '-';
  std::cerr << "linkspan: " << (verb && !known ? "there is no verb \"" + first + "\"" : why)
            << '\n';
  if (known) {
    std::cerr << "`linkspan " << first << " --help` says what it takes.\n";
    return kBadUsage;
  }
  std::cerr << "Verbs:";
  for (const CLI::App* one : verbs) std::cerr << ' ' << one->get_name();
  std::cerr << ". `linkspan --help` says more.\n";
  return kBadUsage;
}

/// Returns `code`, or kFailed if what was printed could not be written.
int written(const std::string& who, int code) {
  std::cout.flush();
  const bool lost = std::fflush(stdout) != 0 || !std::cout;
  if (!lost || code != kSuccess) return code;
  std::cerr << who << ": cannot write all of it to stdout: is the disk full, or its reader gone?\n";
  return kFailed;
}

int run(int argc, char** argv) {
  CLI::App app("linkspan moves bytes between GPU and CPU memories, point to point.", "linkspan");
  app.set_version_flag("--version", std::string("linkspan ") + linkspan_version());
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 all is well, 1 something failed, 2 the arguments are wrong.\n"
      "Settings by environment: `linkspan options`. First steps: `linkspan doctor`.");
  const std::array verbs{demo_verb(), doctor_verb(), topo_verb(), bench_verb(),  serve_verb(),
                         ps_verb(),   store_verb(),  tcpx_verb(), options_verb()};
  for (const auto& verb : verbs) {
    Arguments arguments(*app.add_subcommand(verb->name(), verb->what()));
    verb->define(arguments);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& wanted) {  // --help, --version
    return written("linkspan", app.exit(wanted));
  } catch (const CLI::ParseError& error) {
    return refuse(app, argc > 1 ? argv[1] : "", error.what());
  }
  std::string command = "linkspan";
  for (int i = 1; i < argc; ++i) command += std::string(" ") + argv[i];
  for (const auto& verb : verbs)
    if (app.got_subcommand(verb->name()))
      return written(std::string("linkspan ") + verb->name(), verb->run(command));
  return kBadUsage;  // not reached: one is required
}

int report_error(const char* verb, const Status& why, Exit code) {
  std::cerr << "linkspan " << verb << ": " << why.what() << '\n';
  return code;
}

}  // namespace

int refused(const char* verb, const Status& why) { return report_error(verb, why, kBadUsage); }
int failed(const char* verb, const Status& why) { return report_error(verb, why, kFailed); }

}  // namespace linkspan::tool

int linkspan_tool(int argc, char** argv) try {
  if (argc == 2 && argv[1] == linkspan::tool::kHelperVerb)
    return linkspan::tool::run_helper_process();
  if (argc == 2 && argv[1] == linkspan::tool::kListGpus) return linkspan::tool::run_list_gpus();
  return linkspan::tool::run(argc, argv);
} catch (const std::exception& error) {  // usually out of memory
  std::fprintf(stderr, "linkspan: %s\n", error.what());
  return linkspan::tool::kFailed;
} catch (...) {
  return linkspan::tool::kFailed;
}
