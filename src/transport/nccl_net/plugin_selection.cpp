#include "transport/nccl_net/plugin_selection.hpp"

#include <iterator>

#include "base/environment.hpp"

namespace linkspan::transport::nccl_net {

std::vector<std::string> selected_files(const std::string& wanted,
                                        const NcclNetSettings& settings) {
  const char* const of_nccl = base::environment("NCCL_NET_PLUGIN");  // which Engines ignore
  for (const std::string& list :
       {wanted, settings.plugin, std::string(of_nccl == nullptr ? "" : of_nccl)})
    if (!list.empty()) return files_of(list);
  return {std::begin(kTcpxPlaces), std::end(kTcpxPlaces)};
}

Result<std::shared_ptr<Plugin>> load_selected(const std::string& wanted) {
  auto options = base::Options::from_environment();
  if (!options.ok()) return options.status();
  const auto settings = NcclNetSettings::read(*options);
  if (!settings.ok()) return settings.status();
  return Plugin::load(selected_files(wanted, *settings),
                      base::Log(options->log_level, base::stderr_sink()));
}

}  // namespace linkspan::transport::nccl_net
