#include "transport/nccl_net/plugin_selection.hpp"

#include <iterator>

namespace linkspan::transport::nccl_net {

std::vector<std::string> selected_files(const std::string& wanted, const base::Options& options) {
  for (const std::string& list : {wanted, options.nccl_net_plugin, options.nccl_net_plugin_of_nccl})
    if (!list.empty()) return files_of(list);
  return {std::begin(kTcpxPlaces), std::end(kTcpxPlaces)};
}

Result<std::shared_ptr<Plugin>> load_selected(const std::string& wanted) {
  auto options = base::Options::from_environment();
  if (!options.ok()) return options.status();
  return Plugin::load(selected_files(wanted, *options),
                      base::Log(options->log_level, base::stderr_sink()));
}

}  // namespace linkspan::transport::nccl_net
