// Prepared transfers inside a CUDA graph.
#include <nanobind/stl/optional.h>

#include <optional>
#include <utility>

#include "python/core/core.hpp"

namespace linkspan::python {
namespace {

using namespace nb::literals;

void wait(const PyCaptured& self, std::uint64_t n, std::optional<double> timeout) {
  std::optional<Duration> limit;
  if (timeout) limit = seconds(*timeout, "timeout");
  Status status;
  // A copy, so that the state outlives the object.
  const bool over = in_slices(limit, [&, captured = self.captured](Duration slice) {
    status = captured.wait(n, slice);
    return status.code() != Code::pending;
  });
  if (over) return check(status, self.peer);
  PyErr_SetString(PyExc_TimeoutError, status.what().c_str());
  throw nb::python_error();
}

}  // namespace

void bind_capture(nb::class_<PyPrepared>& prepared) {
  prepared.def(
      "capture",
      [](const PyPrepared& self, nb::handle stream, nb::handle notification,
         std::optional<unsigned> copy_ctas) {
        const StreamOrder order = capture_stream(stream, self.local);
        const CaptureOptions options{.notification = notification_of(notification),
                                     .copy_ctas = copy_ctas};
        auto captured = without_gil([&] { return self.prepared.capture(order, options); });
        return PyCaptured{take(std::move(captured), self.peer), self.peer, self.local.memory};
      },
      "stream"_a.none() = "current", nb::kw_only(), "notification"_a = nb::none(),
      "copy_ctas"_a = nb::none(),
      nb::sig("def capture(self, stream: typing.Any = \"current\", **options: "
              "Unpack[CaptureOptions]) -> CapturedTransfer"),
      "Makes it a node of the CUDA graph that `stream` captures; each launch of the graph moves "
      "all "
      "of it. InvalidArgumentError: the stream captures no graph. UnsupportedError: its GPU does "
      "not map both memories.");
}

void bind_captures(nb::module_& module) {
  nb::class_<PyCaptured>(
      module, "CapturedTransfer",
      "A prepared transfer inside a CUDA graph: each launch of the graph is one. Keep it while the "
      "graph is launched: it keeps the memory. Any thread; it may outlive the graph.")
      .def("wait", &wait, "n"_a, "timeout"_a = nb::none(),
           nb::sig("def wait(self, n: int, timeout: float | None = None) -> None"),
           "Waits until `n` launches have completed. TimeoutError: `timeout` seconds passed first. "
           "Raises why launches do not copy any more.")
      .def_prop_ro(
          "completed", [](const PyCaptured& self) { return self.captured.completed(); },
          "How many launches have moved their data.")
      .def_prop_ro(
          "refused", [](const PyCaptured& self) { return self.captured.refused(); },
          "How many launches came after the end, and moved nothing or the last of them a part.")
      .def_prop_ro(
          "status", [](const PyCaptured& self) { return name_of(self.captured.status().code()); },
          "\"ok\" while launches copy, else why they do not.")
      .def(
          "close",
          [](const PyCaptured& self, double timeout) {
            const Duration limit = seconds(timeout, "timeout");
            check(waiting([&] { return self.captured.close(limit); }), self.peer);
          },
          "timeout"_a = 5.0,
          "Launches copy nothing from now on. PendingError: one still copies; call again.")
      .def_prop_ro("bytes", [](const PyCaptured& self) { return self.captured.bytes(); })
      .def_prop_ro("peer", [](const PyCaptured& self) { return self.peer; });
}

}  // namespace linkspan::python
