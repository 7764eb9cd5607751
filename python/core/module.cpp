// The extension module linkspan._core.
#include "python/core/core.hpp"

NB_MODULE(_core, module) {
  using namespace linkspan::python;
  // Transfers in flight when the interpreter ends are no leak.
  nanobind::set_leak_warnings(false);
  module.attr("version") = LINKSPAN_VERSION;
  module.def("_drain", &drain);
  bind_shapes(module);
  bind_memory(module);
  bind_futures(module);
  bind_captures(module);
  bind_transfers(module);
  bind_peers(module);
  bind_engine(module);
}
