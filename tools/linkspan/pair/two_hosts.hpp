// tools/linkspan/pair/two_hosts.hpp - TwoProcesses with `linkspan serve` of another host as the
// second.
//
// Threads: externally synchronised.
#pragma once

#include <memory>
#include <string>

#include "tools/linkspan/command_line/network_options.hpp"
#include "tools/linkspan/pair/two_processes.hpp"

namespace linkspan::tool {

Result<std::unique_ptr<TwoProcesses>> connect_host(const Gpus& gpus,
                                                   const std::string& host_and_port,
                                                   const NetworkOptions& options);

}  // namespace linkspan::tool
