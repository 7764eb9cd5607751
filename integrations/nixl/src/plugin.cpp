#include "integrations/nixl/src/plugin.hpp"

#include <exception>
#include <memory>
#include <string>
#include <string_view>

#include "base/log.hpp"
#include "integrations/nixl/src/backend.hpp"

namespace linkspan::nixl {
namespace {

constexpr int kVersion = 1;

/// Returns NAME of the path .../libplugin_NAME.so; empty: it is named otherwise.
std::string name_of(std::string_view path) {
  constexpr std::string_view kPrefix = "libplugin_", kSuffix = ".so";
  path = path.substr(path.rfind('/') + 1);
  if (!path.starts_with(kPrefix) || !path.ends_with(kSuffix)) return {};
  path.remove_prefix(kPrefix.size());
  path.remove_suffix(kSuffix.size());
  return std::string(path);
}

void report(const std::string& text) {
  base::Log(base::Level::error, base::stderr_sink()).write(base::Level::error, text);
}

void destroy(abi::Backend* backend) noexcept { delete backend; }

}  // namespace
}  // namespace linkspan::nixl

using namespace linkspan::nixl;

extern "C" {

abi::Plugin linkspan_nixl_plugin(decltype(abi::Plugin::create) create) {
  return {kVersion,
          create,
          &destroy,
          []() { return "LINKSPAN"; },
          []() { return LINKSPAN_VERSION; },
          []() { return BackendOptions::defaults(); },
          []() {
            return abi::Memories{abi::Memory::dram, abi::Memory::vram};
          }};
}

abi::Backend* linkspan_nixl_create(const abi::StartArguments* start, const char* file) {
  try {
    if (!abi::is_known(start, name_of(file))) {
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
}
