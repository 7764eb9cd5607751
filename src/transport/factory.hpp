// transport/factory.hpp - what a transport's folder gives to the registry.
//
// Not on the path of a byte.
// Threads: any thread, but create() as the transport says.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/options.hpp"
#include "memory/registry.hpp"
#include "net/interfaces.hpp"
#include "transport/transport.hpp"

namespace linkspan::transport {

struct Context {
  cuda::Topology* topology = nullptr;  ///< Null: no GPU here.
  memory::Registry* registry = nullptr;
  std::uint64_t incarnation = 0;
  const base::Options* options = nullptr;
  const base::Log* log = nullptr;
};

/// Reports what a transport has found on this machine, for `linkspan doctor`.
struct Finding {
  std::string area, name, found;
  std::string remedy;    ///< Empty: all is well.
  bool present = false;  ///< What it looked for is there.
};

/// Describes a transport and makes it.
struct Factory {
  std::span<const base::OptionInfo> options{};  ///< Their names begin with "<transport>.".
  /// Returns invalid_argument with the key or variable, its value and the remedy. Null: no options.
  Status (*check)(const base::Options& options) = nullptr;
  /// Returns null if the options leave the transport out.
  Result<std::unique_ptr<Transport>> (*create)(const Context& context) = nullptr;
  /// Returns the network interfaces that its options name for data connections. May be null.
  Result<std::vector<net::Interface>> (*interfaces)(const base::Options& options) = nullptr;
  /// Returns after what time a remote peer is lost whose host answers no packet. May be null.
  Result<Duration> (*peer_timeout)(const base::Options& options) = nullptr;
  /// check() has accepted the options. May be null.
  Finding (*find)(const base::Options& options) = nullptr;
};

}  // namespace linkspan::transport
