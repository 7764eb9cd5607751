// transport/tcp/options.hpp - the options of this transport, in EngineOptions::transport or the
// environment.
//
// Threads: as base/options.hpp.
#pragma once

#include "base/options.hpp"

namespace linkspan::transport::tcp {

struct TcpSettings {
  unsigned connections = 1;  ///< To a peer, at most. 0: the transport is left out.
  std::string interfaces;    ///< Names, separated by commas. Empty: the kernel chooses.
  Duration peer_timeout{};   ///< After it a host is lost that answers no packet.
  Duration stall_timeout{};  ///< After it a peer is lost that takes no byte.

  /// invalid_argument: names the key or variable, its value and the remedy.
  static Result<TcpSettings> read(const base::Options& options);
};

}  // namespace linkspan::transport::tcp
