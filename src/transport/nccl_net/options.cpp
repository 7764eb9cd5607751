#include "transport/nccl_net/options.hpp"

#include "transport/factory.hpp"
#include "transport/nccl_net/nccl_net_transport.hpp"
#include "transport/nccl_net/plugin_selection.hpp"

namespace linkspan::transport::nccl_net {
namespace {

constexpr base::OptionInfo kOptions[] = {
    {"nccl_net.plugin", "LINKSPAN_NCCL_NET_PLUGIN", "names or paths, by comma", "none",
     "The network plugin of NCCL's by which Engines reach peers as well (docs/tcpx.md); x is also "
     "libnccl-net-x.so. `linkspan tcpx` and p2p/tcpx load it too, where it is not set "
     "$NCCL_NET_PLUGIN, else GPUDirect-TCPX below /usr/local/tcpx."},
    {"nccl_net.unpack", "LINKSPAN_UNPACK", "d2d, host or kernel",
     "kernel; d2d in `linkspan tcpx` and p2p/tcpx",
     "How fragments that a GPUDirect-TCPX plugin has received reach their place: a copy for each, "
     "through host memory, or one kernel for all."},
    {"nccl_net.unpack (seed)", "UCCL_TCPX_UNPACK_IMPL", "d2d, host or kernel", "none",
     "The same for programs that set it; LINKSPAN_UNPACK wins."},
};
constexpr const base::OptionInfo& kPlugin = kOptions[0];

Status check(const base::Options& options) { return NcclNetSettings::read(options).status(); }

Result<std::unique_ptr<Transport>> create(const Context& context) {
  const auto settings = NcclNetSettings::read(*context.options);
  if (!settings.ok()) return settings.status();
  const auto files = files_of(settings->plugin);
  if (files.empty()) return std::unique_ptr<Transport>();  // "none" is empty, too
  auto plugin = Plugin::load(files, *context.log);
  if (!plugin.ok()) return plugin.status();
  return NcclNetTransport::create({.plugin = *std::move(plugin),
                                   .topology = context.topology,
                                   .incarnation = context.incarnation,
                                   .unpack = settings->unpack,
                                   .copy_ctas = context.options->copy_ctas});
}

/// Looks for the plugin that programs of TCPX select.
Finding find(const base::Options& options) {
  const auto settings = NcclNetSettings::read(options);
  if (!settings.ok()) return {};
  const std::vector<std::string> files = selected_files({}, *settings);
  const auto found = find_plugin(files);
  Finding out{.area = "tcpx", .name = "plugin", .found = {}, .remedy = {}, .present = found.ok()};
  if (found.ok())
    out.found = found->file + ", ncclNetPlugin_v" + std::to_string(found->version);
  else if (settings->plugin.empty())
    out.found = "none: GPUDirect-TCPX is not below /usr/local/tcpx";
  else if (files.empty())
    out.found = "none is wanted";
  if (!out.found.empty()) return out;
  out.found = found.status().what();
  out.remedy = "name a plugin of NCCL's, or unset LINKSPAN_NCCL_NET_PLUGIN and NCCL_NET_PLUGIN";
  return out;
}

}  // namespace

std::optional<Unpack> parse_unpack(std::string_view text) noexcept {
  for (const Unpack method : {Unpack::d2d, Unpack::host, Unpack::kernel})
    if (text == name_of(method)) return method;
  return std::nullopt;
}

Result<NcclNetSettings> NcclNetSettings::read(const base::Options& options) {
  NcclNetSettings out{.plugin = options.setting_of(kPlugin).value};
  for (const base::OptionInfo& option : std::span(kOptions).subspan(1)) {
    const base::Setting set = options.setting_of(option);
    if (set.value.empty()) continue;
    out.unpack = parse_unpack(set.value);
    if (!out.unpack) return set.refused(kUnpackRemedy);
    break;
  }
  return out;
}

extern constinit const Factory factory{
    .options = kOptions, .check = check, .create = create, .find = find};

}  // namespace linkspan::transport::nccl_net
