// tools/linkspan/pair/two_hosts.hpp - makes a TwoProcesses whose second process is `linkspan serve`
// on another host.
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
