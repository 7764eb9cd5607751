// tools/linkspan/command_line/network_options.hpp - the options of every verb between hosts, and
// the EngineOptions that follow from them.
//
// Threads: externally synchronised.
#pragma once

#include <string>

#include "linkspan/engine.hpp"
#include "tools/linkspan/command_line/arguments.hpp"

namespace linkspan::tool {

struct NetworkOptions {
  std::string secret_file;
  std::string security;  ///< A name of Security. Empty: the default.
  unsigned timeout_s = 30;

  void define(Arguments& arguments);
  EngineOptions engine(const char* name) const;
  Duration timeout() const { return std::chrono::seconds(timeout_s); }
};

/// Returns "tcp:10.0.0.7:4711" for "10.0.0.7:4711", which may begin with "tcp:" already.
std::string tcp_address(const std::string& host_and_port);
/// Adds the remedy to the error of a failed connect.
Status connect_failed(const std::string& host_and_port, const Status& why);

}  // namespace linkspan::tool
