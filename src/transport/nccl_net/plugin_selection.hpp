// transport/nccl_net/plugin_selection.hpp - which plugin is meant when a program asks for one.
//
// Threads: any thread.
#pragma once

#include "base/options.hpp"
#include "transport/nccl_net/plugin.hpp"

namespace linkspan::transport::nccl_net {

/// `wanted` as files_of() takes it; where it is empty LINKSPAN_NCCL_NET_PLUGIN, else
/// NCCL_NET_PLUGIN, else TCPX at its own place.
std::vector<std::string> selected_files(const std::string& wanted, const base::Options& options);

/// The plugin of these. Errors as Plugin::load(). Its lines go to stderr as LINKSPAN_LOG_LEVEL
/// says.
Result<std::shared_ptr<Plugin>> load_selected(const std::string& wanted);

}  // namespace linkspan::transport::nccl_net
