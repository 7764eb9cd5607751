// tools/linkspan/command_line/network_options.hpp - what every verb between hosts takes, and what
// its Engine is opened with: the one place for an option of either.
//
// Threads: externally synchronised.
#pragma once

#include <string>

#include "linkspan/engine.hpp"
#include "tools/linkspan/command_line/arguments.hpp"

namespace linkspan::tool {

struct NetworkOptions {
  std::string secret_file;
  bool insecure = false;
  unsigned timeout_s = 30;

  void define(Arguments& arguments);
  EngineOptions engine(const char* name) const;
  Duration timeout() const { return std::chrono::seconds(timeout_s); }
};

/// "tcp:10.0.0.7:4711" of "10.0.0.7:4711"; with "tcp:" before it, it is taken as well.
std::string tcp_address(const std::string& host_and_port);
/// A connect to it that failed, with the remedy.
Status connect_failed(const std::string& host_and_port, const Status& why);

}  // namespace linkspan::tool
