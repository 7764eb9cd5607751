// The keywords of a submission.
#include <nanobind/stl/string.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "python/core/core.hpp"

namespace linkspan::python {
namespace {

using Kind = StreamOrder::Kind;

StreamOrder stream_of_number(std::uint64_t number) {
  switch (number) {
    case 1:
      return {.kind = Kind::legacy_default};
    case 2:
      return {.kind = Kind::per_thread_default};
    default:
      return {.kind = Kind::created,
              .handle = reinterpret_cast<void*>(number)};  // NOLINT(performance-no-int-to-ptr)
  }
}

/// Asks torch for its current stream of a device. Not valid: torch does not work with CUDA here, so
/// nothing of it is under way. Kept for ever once it is found: this is on the path of every byte.
nb::handle current_stream_of_torch() {
  static nb::handle ask;
  if (ask.is_valid()) return ask;
  PyObject* torch = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");  // borrowed
  if (torch == nullptr) return {};
  const nb::object module = nb::borrow(torch);
  if (!nb::hasattr(module, "cuda") || !nb::cast<bool>(module.attr("cuda").attr("is_initialized")()))
    return {};
  ask = nb::object(module.attr("_C").attr("_cuda_getCurrentRawStream")).release();
  return ask;
}

StreamOrder current_stream(const PyRegion* local) {
  if (local == nullptr || local->device == kNoDevice) return {};
  const nb::handle ask = current_stream_of_torch();
  if (!ask.is_valid()) return {};
  if (local->device == kSeveralDevices)
    throw nb::value_error(
        "the local regions are on several GPUs, each with a current stream: give a stream or None "
        "for after and release, or submit a transfer for each GPU");
  const auto number = nb::cast<std::uint64_t>(ask(local->device));
  StreamOrder order = stream_of_number(number == 0 ? 1 : number);  // 0: the legacy default stream
  order.gpu = local->region.gpu();
  return order;
}

StreamOrder stream_of(nb::handle value, const char* what, const PyRegion* local) {
  if (value.is_none()) return {};
  if (nb::isinstance<nb::str>(value)) {
    if (std::string_view(nb::cast<const char*>(value)) == "current") return current_stream(local);
    throw nb::value_error((std::string(what) + "=\"" + nb::cast<const char*>(value) +
                           "\": give \"current\", None, a stream object or a cudaStream_t")
                              .c_str());
  }
  const nb::object found =
      nb::module_::import_("linkspan._streams").attr("number_and_gpu")(value, what);
  StreamOrder order = stream_of_number(nb::cast<std::uint64_t>(found[0]));
  if (!found[1].is_none()) {
    const auto uuid = nb::cast<nb::bytes>(found[1]);
    std::copy_n(static_cast<const std::byte*>(uuid.data()), std::min(uuid.size(), order.gpu.size()),
                order.gpu.begin());
  }
  return order;
}

template <class T>
T option(nb::handle value, const char* name, const char* what) {
  T parsed{};
  if (nb::try_cast(value, parsed)) return parsed;
  throw nb::type_error(
      (std::string(name) + "=" + nb::cast<std::string>(nb::repr(value)) + ": give " + what)
          .c_str());
}

}  // namespace

std::span<const std::byte> notification_of(nb::handle value) {
  if (value.is_none()) return {};
  if (!nb::isinstance<nb::bytes>(value)) throw nb::type_error("notification: give bytes");
  const auto bytes = nb::borrow<nb::bytes>(value);
  return {static_cast<const std::byte*>(bytes.data()), bytes.size()};
}

StreamOrder capture_stream(nb::handle stream, const PyRegion& local) {
  return stream_of(stream, "stream", &local);
}

TransferOptions transfer_options(const nb::kwargs& options, const PyRegion* local) {
  TransferOptions parsed;
  bool ordered = false;
  for (const auto& [key, value] : options) {
    const std::string_view name = nb::cast<const char*>(key);
    const bool given = !value.is_none();
    if (name == "after") {
      parsed.after = stream_of(value, "after", local);
      ordered = true;
    } else if (name == "release") {
      parsed.release = stream_of(value, "release", local);
    } else if (name == "deadline") {
      if (given)
        parsed.deadline = seconds(option<double>(value, "deadline", "seconds"), "deadline");
    } else if (name == "notification") {
      parsed.notification = notification_of(value);
    } else if (name == "require") {
      if (given) parsed.require = option<std::string>(value, "require", "the beginning of a path");
    } else if (name == "low_latency") {
      parsed.low_latency = option<bool>(value, "low_latency", "True or False");
    } else if (name == "copy_ctas") {
      if (given)
        parsed.copy_ctas = option<unsigned>(value, "copy_ctas", "a whole number from 0 on");
    } else if (name == "checksum") {
      parsed.checksum = option<bool>(value, "checksum", "True or False");
    } else if (name == "failover") {
      parsed.failover = option<bool>(value, "failover", "True or False");
    } else {
      throw nb::type_error(("unknown option \"" + std::string(name) +
                            "\"; there are deadline, notification, after, release, require, "
                            "low_latency, copy_ctas, checksum, failover")
                               .c_str());
    }
  }
  if (!ordered) parsed.after = current_stream(local);
  return parsed;
}

}  // namespace linkspan::python
