// transport/registry.hpp - every transport of this build: its options, and its creation.
//
// Not on the path of a byte: the engine calls it once.
// Threads: any thread, but create_all() is externally synchronised.
#pragma once

#include <memory>
#include <vector>

#include "transport/factory.hpp"

namespace linkspan::transport {

/// Returns the transports, best first: the router tries them in this order.
Result<std::vector<std::unique_ptr<Transport>>> create_all(const Context& context);

/// Returns the options of base and those of each transport.
std::vector<base::OptionInfo> option_table();
/// Checks the options of all transports. invalid_argument: a key that no transport has, whose text
/// lists the known ones, or a wrong value, with its key or variable and the remedy.
Status check_options(const base::Options& options);
/// Returns the network interfaces that options name for data connections. Errors as
/// net::find_interfaces().
Result<std::vector<net::Interface>> interfaces(const base::Options& options);
/// Returns the longest peer_timeout() of a transport. Errors as check_options().
Result<Duration> peer_timeout(const base::Options& options);
/// Returns what each transport finds on this machine. check_options() has accepted the options.
std::vector<Finding> findings(const base::Options& options);

}  // namespace linkspan::transport
