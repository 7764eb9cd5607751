// libplugin_LINKSPAN.so: what NIXL's plugin manager calls.

#include <dlfcn.h>

#include <exception>
#include <memory>
#include <string>
#include <string_view>

#include "base/log.hpp"
#include "integrations/nixl/src/abi.hpp"
#include "integrations/nixl/src/backend.hpp"

namespace linkspan::nixl {
namespace {

constexpr int kVersion = 1;

/// Returns NAME of libplugin_NAME.so, by which NIXL loaded this file: a link may have another.
std::string name_of_file() {
  constexpr std::string_view kPrefix = "libplugin_", kSuffix = ".so";
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&name_of_file), &info) == 0) return {};
  std::string_view path = info.dli_fname;
  path = path.substr(path.rfind('/') + 1);
  if (!path.starts_with(kPrefix) || !path.ends_with(kSuffix)) return {};
  path.remove_prefix(kPrefix.size());
  path.remove_suffix(kSuffix.size());
  return std::string(path);
}

void report(const std::string& text) {
  base::Log(base::Level::error, base::stderr_sink()).write(base::Level::error, text);
}

abi::Backend* create(const abi::StartArguments* start) noexcept {
  try {
    if (!abi::is_known(start, name_of_file())) {
      report(
          "nixl: the backend LINKSPAN does not start: this NIXL lays out its arguments in a way "
          "that the plugin does not know. It knows NIXL 1.0.1 to 1.5.1: use one of these, or a "
          "newer linkspan");
      return nullptr;
    }
    return std::make_unique<LinkspanBackend>(*start).release();
  } catch (const std::exception& error) {
    report(std::string("nixl: the backend LINKSPAN does not start: ") + error.what());
    return nullptr;
  }
}

void destroy(abi::Backend* backend) noexcept { delete backend; }

abi::Plugin& plugin() {
  static abi::Plugin out{kVersion,
                         &create,
                         &destroy,
                         []() { return "LINKSPAN"; },
                         []() { return LINKSPAN_VERSION; },
                         []() { return BackendOptions::defaults(); },
                         []() {
                           return abi::Memories{abi::Memory::dram, abi::Memory::vram};
                         }};
  return out;
}

}  // namespace
}  // namespace linkspan::nixl

extern "C" {
__attribute__((visibility("default"))) linkspan::nixl::abi::Plugin* nixl_plugin_init() {
  return &linkspan::nixl::plugin();
}
__attribute__((visibility("default"))) void nixl_plugin_fini() {}
}
