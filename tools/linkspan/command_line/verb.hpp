// tools/linkspan/command_line/verb.hpp - the interface of `linkspan VERB`: one folder a verb.
//
// Threads: the main thread.
#pragma once

#include <memory>
#include <string>

#include "linkspan/status.hpp"
#include "tools/linkspan/command_line/arguments.hpp"

namespace linkspan::tool {

/// Exit codes of every verb.
enum Exit : int {
  kSuccess = 0,   ///< Success.
  kFailed = 1,    ///< Something failed, and the text says what.
  kBadUsage = 2,  ///< The arguments are wrong: nothing was done.
};

class Verb {
 public:
  virtual ~Verb() = default;
  virtual const char* name() const = 0;
  virtual const char* what() const = 0;  ///< One or two sentences for --help.
  virtual void define(Arguments& arguments) = 0;
  /// Runs the verb and returns the exit code. `command` is the command line.
  virtual int run(const std::string& command) = 0;
};

/// Prints "linkspan VERB: why" on stderr, and returns the exit code.
int refused(const char* verb, const Status& why);  ///< kBadUsage
int failed(const char* verb, const Status& why);   ///< kFailed

std::unique_ptr<Verb> demo_verb();
std::unique_ptr<Verb> bench_verb();
std::unique_ptr<Verb> topo_verb();
std::unique_ptr<Verb> doctor_verb();
std::unique_ptr<Verb> serve_verb();
std::unique_ptr<Verb> ps_verb();
std::unique_ptr<Verb> store_verb();
std::unique_ptr<Verb> tcpx_verb();
std::unique_ptr<Verb> options_verb();

}  // namespace linkspan::tool
