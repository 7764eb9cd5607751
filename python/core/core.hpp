// core.hpp - what the files of the extension module share.
//
// The module is thin: each call goes to its namesake in linkspan/*.hpp. What Python adds lies here:
// exceptions, options by name, shapes out of lists and arrays, and memory that lives until its
// transfer is quiet.
// Threads: all under the interpreter's lock but for GIL-free sections, which touch no Python
// object. No lock of the library is ever held by a thread that waits for the interpreter's.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "linkspan/completion_queue.hpp"
#include "linkspan/engine.hpp"
#include "linkspan/interrupt_check.hpp"

namespace linkspan::python {

namespace nb = nanobind;

/// A Region with what its memory belongs to.
struct PyRegion {
  Region region;
  nb::object memory;  // lives as long
  int device = -1;    // as CUDA's runtime counts in this process; -1: no GPU, or nobody said
};

/// A Transfer with what must live until it is quiet beside its regions.
struct PyTransfer {
  Transfer transfer;
  std::uint64_t peer = 0;
  nb::object memory;
};

/// A Prepared, and the region whose current stream its posts come after.
struct PyPrepared {
  Prepared prepared;
  std::uint64_t peer = 0;
  nb::object local;
};

/// Page indices as the library wants them: copied, or where they are on a GPU.
struct PyPages {
  std::uint64_t page_bytes = 0, local_base = 0, remote_base = 0;
  std::vector<std::uint32_t> lists;  // of this side, then of the other
  nb::object on_gpu;                 // instead: what holds both arrays
  std::span<const std::uint32_t> gpu_local, gpu_remote;

  Pages pages() const;
};

// errors.cpp
/// Throws the exception of that code, with peer and transfer in it.
[[noreturn]] void raise(const Status& status, std::uint64_t peer = 0, nb::handle transfer = {});
/// The exception itself.
nb::object exception_of(const Status& status, std::uint64_t peer = 0, nb::handle transfer = {});
inline void check(const Status& status, std::uint64_t peer = 0) {
  if (!status.ok()) raise(status, peer);
}
template <class T>
T take(Result<T> result, std::uint64_t peer = 0) {
  if (!result.ok()) raise(result.status(), peer);
  return *std::move(result);
}

/// The bytes of a path or address: a str, bytes or os.PathLike, of any bytes.
std::string path_of(nb::handle value);
/// The str of bytes that may be no UTF-8, as os.fsdecode() makes it.
nb::object text_of(const std::string& bytes);

/// Seconds. ValueError: negative or no number; `what` names the argument.
Duration seconds(double value, const char* what);

/// While one lives, other threads of Python run. Not any more when the interpreter ends, where a
/// thread that came back would be killed in the midst of ours: drain() waits for those that are
/// out.
class Released {
 public:
  Released();
  Released(const Released&) = delete;
  Released& operator=(const Released&) = delete;
  ~Released();

 private:
  std::optional<nb::gil_scoped_release> out_;
};
/// From now on nobody leaves the interpreter's lock; at most a second until nobody is out.
void drain();
bool is_ending();

/// Returns act()'s result, which is called without the interpreter's lock and waits for nothing.
template <class Act>
auto without_gil(Act act) {
  const Released released;
  return act();
}

/// Runs the handlers of the signals that came. Returns true if one raised, or the interpreter ends:
/// the wait is over. Called without the interpreter's lock.
bool handle_signals();

/// Returns act()'s result, which is called without the interpreter's lock and may wait. A signal
/// whose handler raises ends the wait within 0.1 s, and the exception is thrown.
template <class Act>
auto waiting(Act act) {
  auto result = [&] {
    const Released released;
    const InterruptCheck check(&handle_signals);
    return act();
  }();
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  return result;
}

/// `act(slice)` without the interpreter's lock in slices, between which signals are looked at,
/// until it answers true or the time has passed. No time: until it answers true. The last answer.
template <class Act>
bool in_slices(std::optional<Duration> timeout, Act act) {
  constexpr Duration kSlice = std::chrono::milliseconds(50);
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  for (;;) {
    const Duration left =
        timeout ? *timeout - std::chrono::duration_cast<Duration>(Clock::now() - begin) : kSlice;
    bool done = false;
    {
      const Released released;
      done = act(is_ending() ? Duration::zero() : std::clamp(left, Duration::zero(), kSlice));
    }
    if (done || left <= Duration::zero() || is_ending()) return done;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

/// A submission. What orders it after a stream of the user's may wait in the driver, for a stream
/// that is full.
template <class Act>
auto submitting(const TransferOptions& options, Act act) {
  constexpr auto kNone = StreamOrder::Flavour::none;
  std::optional<Released> released;
  if (options.after.flavour != kNone || options.release.flavour != kNone) released.emplace();
  return act();
}

// options.cpp
/// Of the keywords of a submission. `local`: the region that "current" means a stream of; may be
/// null. What it points to is in `options`, which outlives it.
TransferOptions transfer_options(const nb::kwargs& options, const PyRegion* local);

// shapes.cpp
using Blocks = std::vector<Block>;
using Shape = std::variant<Blocks, const PyPages*, const Strides*>;
/// None: all of both regions. Else Pages, Strides, or blocks as rows of three.
Shape shape_of(nb::handle value, std::uint64_t here, std::uint64_t there);
/// Calls `act` with the shape as the library's type.
template <class Act>
auto with_shape(const Shape& shape, Act act) {
  if (const auto* pages = std::get_if<const PyPages*>(&shape)) return act((*pages)->pages());
  if (const auto* strides = std::get_if<const Strides*>(&shape)) return act(**strides);
  return act(std::span<const Block>(std::get<Blocks>(shape)));
}

/// Lists on a GPU are read when the kernel runs.
inline nb::object keepalive_of(const Shape& shape) {
  const auto* pages = std::get_if<const PyPages*>(&shape);
  return pages != nullptr ? (*pages)->on_gpu : nb::object();
}
/// Of a list, or of an array of whole numbers.
std::vector<std::uint32_t> indices_of(nb::handle value, const char* what);

// transfers.cpp
/// `memory`, if any, is held until the transfer is quiet, whoever drops the object.
nb::object keep(Transfer transfer, std::uint64_t peer, const nb::object& memory = {});

void bind_shapes(nb::module_& module);
void bind_memory(nb::module_& module);
void bind_transfers(nb::module_& module);
void bind_peers(nb::module_& module);
void bind_engine(nb::module_& module);

}  // namespace linkspan::python
