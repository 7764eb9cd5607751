// The results of calls that return at once.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <string>

#include "python/core/core.hpp"

namespace linkspan::python {
namespace {

using namespace nb::literals;

const AnyFuture& any_of(const PyFuture& self) {
  return std::visit([](const AnyFuture& future) -> const AnyFuture& { return future; },
                    self.future);
}

/// Waits for `slice` and returns the status, which is `pending` unless the call is done.
Status status_of(const PyFuture::Any& future, Duration slice) {
  return std::visit(
      [&](const auto& its) -> Status {
        auto outcome = its.wait(slice);
        if constexpr (std::is_same_v<decltype(outcome), Status>)
          return outcome;
        else
          return outcome.status();
      },
      future);
}

/// Returns the value of a call that is done and ok: None, if it has none.
nb::object value_of(const PyFuture& self) {
  return std::visit(
      [&](const auto& its) -> nb::object {
        auto outcome = its.wait(Duration::zero());
        if constexpr (std::is_same_v<decltype(outcome), Status>)
          return nb::none();
        else
          return nb::cast(*outcome);
      },
      self.future);
}

nb::object wait_for(PyFuture& self, std::optional<double> timeout) {
  std::optional<Duration> limit;
  if (timeout) limit = seconds(*timeout, "timeout");
  Status status;
  in_slices(limit, [&, future = self.future](Duration slice) {
    status = status_of(future, slice);
    return status.code() != Code::pending;
  });
  if (status.code() == Code::pending) {
    PyErr_SetString(PyExc_TimeoutError, status.what().c_str());
    throw nb::python_error();
  }
  check(status, self.peer);
  if (const nb::object once = std::move(self.when_ok); once.is_valid()) once();
  return value_of(self);
}

}  // namespace

void bind_futures(nb::module_& module) {
  nb::class_<PyFuture>(
      module, "Future", nb::is_weak_referenceable(),
      nb::type_slots(CollectedSlots<&PyFuture::when_ok>::slots),
      "What a call that returned at once becomes. `await future`, or wait(): both return what the "
      "waiting call returns, and raise what it raises. Any thread; dropping it changes nothing.")
      .def(
          "wait", &wait_for, "timeout"_a = nb::none(),
          nb::sig("def wait(self, timeout: float | None = None) -> typing.Any"),
          "Waits until the call is done, without the interpreter's lock; a signal ends the wait. "
          "Returns the result, also repeatedly. TimeoutError: `timeout` seconds passed first, and "
          "the call continues. TimedOutError, also a TimeoutError: the call's own time-out passed.")
      .def(
          "done", [](const PyFuture& self) { return any_of(self).done(); },
          "The call is done: wait() returns at once.")
      .def(
          "cancel",
          [](const PyFuture& self) {
            any_of(self).cancel();
            return true;
          },
          "Ends the call as canceled unless it is done. True: it is done now.")
      .def(
          "__await__",
          [](nb::handle self) {
            return nb::module_::import_("linkspan._asyncio")
                .attr("until_done")(self)
                .attr("__await__")();
          },
          nb::sig("def __await__(self) -> typing.Generator[typing.Any, None, typing.Any]"))
      .def("__repr__", [](const PyFuture& self) {
        return "<Future: " + std::string(name_of(status_of(self.future, {}).code())) + ">";
      });
}

}  // namespace linkspan::python
