// The extension module linkspan._core.
#include "python/core/core.hpp"

NB_MODULE(_core_of_main, module) {
  using namespace linkspan::python;
  // Transfers in flight when the interpreter ends are no leak.
  nanobind::set_leak_warnings(false);
  module.attr("version") = LINKSPAN_VERSION;
  module.def("_drain", &drain);
  module.def("_forget_threads", &forget_threads);
  bind_shapes(module);
  bind_memory(module);
  bind_futures(module);
  bind_captures(module);
  bind_transfers(module);
  bind_peers(module);
  bind_engine(module);
}

/// Refuses other interpreters of the process: nanobind would register the types again, and those of
/// the main interpreter would be lost.
// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming): as Python calls it
extern "C" NB_EXPORT PyObject* PyInit__core() {
  if (PyInterpreterState_GetID(PyInterpreterState_Get()) == 0) return PyInit__core_of_main();
  PyErr_SetString(PyExc_ImportError,
                  "linkspan works in the main interpreter of a process only: import it there, or "
                  "in a process of its own");
  return nullptr;
}
