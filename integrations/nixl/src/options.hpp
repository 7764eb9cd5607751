// nixl/options.hpp - the parameters that an agent gives its backend LINKSPAN.
//
// Threads: values.
#pragma once

#include <string>
#include <vector>

#include "integrations/nixl/src/abi.hpp"
#include "linkspan/engine.hpp"
#include "linkspan/status.hpp"
#include "linkspan/transfer.hpp"

namespace linkspan::nixl {

struct BackendOptions {
  EngineOptions engine{};
  /// Where other hosts connect. Empty: only processes of this host and user connect.
  std::string listen = "tcp:0.0.0.0:0";
  /// Whether processes of this host connect by a Unix socket, which NVLink and shared memory need.
  bool unix_socket = true;
  /// Limits a transfer; each GB of it adds a second.
  Duration deadline = std::chrono::seconds(30);
  TransferOptions transfer{};        ///< `require` and `low_latency` of each transfer.
  std::vector<std::string> unknown;  ///< Names that have no effect here nor in NIXL's own backends.

  /// invalid_argument names the parameter, its value and what is allowed.
  static Result<BackendOptions> parse(const abi::Parameters& parameters);
  /// Returns what NIXL shows of the parameters: names with defaults.
  static abi::Parameters defaults();
};

}  // namespace linkspan::nixl
