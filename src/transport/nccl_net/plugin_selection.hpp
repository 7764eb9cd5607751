// transport/nccl_net/plugin_selection.hpp - selects the plugin when a program asks for one.
//
// Threads: any thread.
#pragma once

#include "transport/nccl_net/options.hpp"
#include "transport/nccl_net/plugin.hpp"

namespace linkspan::transport::nccl_net {

/// Returns the files of `wanted` (as files_of() takes it), else of LINKSPAN_NCCL_NET_PLUGIN, else
/// of NCCL_NET_PLUGIN, else those of TCPX.
std::vector<std::string> selected_files(const std::string& wanted, const NcclNetSettings& settings);

/// Loads the plugin from the selected files. Errors as Plugin::load(). Its lines go to stderr as
/// LINKSPAN_LOG_LEVEL says.
Result<std::shared_ptr<Plugin>> load_selected(const std::string& wanted);

}  // namespace linkspan::transport::nccl_net
