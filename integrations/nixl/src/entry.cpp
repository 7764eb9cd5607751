// libplugin_LINKSPAN.so: the two functions that NIXL's plugin manager looks up.

#include <dlfcn.h>

#include "integrations/nixl/src/plugin.hpp"

using namespace linkspan::nixl;

namespace {

/// NIXL names the backend by the file that it loaded, which may be a link of another name.
abi::Backend* create(const abi::StartArguments* start) {
  Dl_info info{};
  const bool found = ::dladdr(reinterpret_cast<const void*>(&create), &info) != 0;
  return linkspan_nixl_create(start, found ? info.dli_fname : "");
}

}  // namespace

extern "C" {
LINKSPAN_API abi::Plugin* nixl_plugin_init() {
  static abi::Plugin plugin = linkspan_nixl_plugin(&create);
  return &plugin;
}
LINKSPAN_API void nixl_plugin_fini() {}
}
