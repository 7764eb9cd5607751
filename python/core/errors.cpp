// A Status as an exception of linkspan._errors.
#include <cmath>

#include "python/core/core.hpp"

namespace linkspan::python {

nb::object exception_of(const Status& status, std::uint64_t peer, nb::handle transfer) {
  constexpr const char* kScopes[] = {"request", "peer", "transport", "process"};
  return nb::module_::import_("linkspan._errors")
      .attr("of")(name_of(status.code()), kScopes[static_cast<std::size_t>(status.scope())],
                  text_of(status.what()), peer == 0 ? nb::none() : nb::object(nb::int_(peer)),
                  transfer.is_valid() ? nb::borrow(transfer) : nb::none());
}

void raise(const Status& status, std::uint64_t peer, nb::handle transfer) {
  const nb::object exception = exception_of(status, peer, transfer);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  throw nb::python_error();
}

std::string path_of(nb::handle value) {
  PyObject* bytes = nullptr;
  if (PyUnicode_FSConverter(value.ptr(), &bytes) == 0) throw nb::python_error();
  const auto owned = nb::steal<nb::bytes>(bytes);
  return {owned.c_str(), owned.size()};
}

nb::object text_of(const std::string& bytes) {
  return nb::steal(
      PyUnicode_DecodeFSDefaultAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size())));
}

Duration seconds(double value, const char* what) {
  constexpr double kMax = 9e9;  // nanoseconds of 64 bits end a little later
  if (!(value >= 0))
    throw nb::value_error(
        (std::string(what) + "=" + std::to_string(value) + ": give seconds from 0 on").c_str());
  return Duration(static_cast<std::int64_t>(std::min(value, kMax) * 1e9));
}

}  // namespace linkspan::python
