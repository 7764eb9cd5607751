// core.hpp - declarations that the files of the extension module share.
//
// Each call goes to the function of the same name in linkspan/*.hpp. The module adds exceptions,
// options by name, shapes from lists and arrays, and memory that lives until its transfer is quiet.
// Threads: under the GIL, except in GIL-free sections, which touch no Python object.
// Invariants: no thread waits for the GIL while it holds a lock of the library.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "linkspan/completion_queue.hpp"
#include "linkspan/engine.hpp"
#include "linkspan/interrupt_check.hpp"

namespace linkspan::python {

namespace nb = nanobind;

/// Values in the place of an ordinal of the CUDA runtime: no GPU, or unknown; several GPUs.
constexpr int kNoDevice = -1, kSeveralDevices = -2;

/// A Region and the Python object that owns its memory.
struct PyRegion {
  Region region;
  nb::object memory;       // kept alive until the registration has ended; not of allocate_shared()
  int device = kNoDevice;  // ordinal of the CUDA runtime
  bool read_only = false;  // nothing here may write it either

  /// Lets go of `memory`: the registration has ended.
  void end() {
    if (memory.is_valid()) memory = nb::none();
  }
  bool has_ended() const { return memory.is_valid() && memory.is_none(); }
};

/// A Transfer, and what must live until it is quiet besides its regions.
struct PyTransfer {
  Transfer transfer;
  std::uint64_t peer = 0;
  nb::object memory;
};

/// A Future, and what is done once it is known to have ended ok.
struct PyFuture {
  using Any = std::variant<Future<void>, Future<Peer>, Future<RemoteRegion>, Future<RegionSet>>;

  Any future;
  std::uint64_t peer = 0;
  nb::object when_ok{};  // called without arguments, once
};

/// A Prepared, and the region whose current stream its posts are ordered after. Its `memory` is
/// that of all local regions.
struct PyPrepared {
  Prepared prepared;
  std::uint64_t peer = 0;
  PyRegion local;
};

/// A CapturedTransfer, and the memory of its local regions, which the graph may copy.
struct PyCaptured {
  CapturedTransfer captured;
  std::uint64_t peer = 0;
  nb::object memory;
};

template <class T, nb::object T::*kMember>
int traverse_member(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (nb::inst_ready(self)) Py_VISIT((nb::inst_ptr<T>(self)->*kMember).ptr());
  return 0;
}
inline int clear_nothing(PyObject* /*self*/) { return 0; }

template <auto kMember>
struct CollectedSlots;
/// Slots of a class whose member may lead back to its Engine: the garbage collector sees it. It
/// clears nothing here, because peers may use the memory: an Engine that is collected closes first.
template <class T, nb::object T::*kMember>
struct CollectedSlots<kMember> {
  static inline const PyType_Slot slots[] = {
      {Py_tp_traverse, reinterpret_cast<void*>(&traverse_member<T, kMember>)},
      {Py_tp_clear, reinterpret_cast<void*>(&clear_nothing)},
      {0, nullptr}};
};

/// Leaves new elements without a value: they are written before they are read.
template <class T>
struct UninitializedAllocator : std::allocator<T> {
  template <class U>
  void construct(U* at) noexcept {
    ::new (static_cast<void*>(at)) U;
  }
};
using IndexList = std::vector<std::uint32_t, UninitializedAllocator<std::uint32_t>>;

/// Page indices in the library's format: copied, or in place on a GPU.
struct PyPages {
  std::uint64_t page_bytes = 0, local_base = 0, remote_base = 0;
  std::size_t rows = 0;  // equally long lists, one for each region; 0: one for all
  IndexList lists;       // the local indices, then the remote ones
  nb::object on_gpu;     // set instead: the owner of both arrays
  std::span<const std::uint32_t> gpu_local, gpu_remote;

  Pages pages() const;
  Pages row(std::size_t index) const;
};

// errors.cpp
/// Throws the exception of the Status' code, with the peer and the transfer.
[[noreturn]] void raise(const Status& status, std::uint64_t peer = 0, nb::handle transfer = {});
/// Returns that exception.
nb::object exception_of(const Status& status, std::uint64_t peer = 0, nb::handle transfer = {});
inline void check(const Status& status, std::uint64_t peer = 0) {
  if (!status.ok()) raise(status, peer);
}
template <class T>
T take(Result<T> result, std::uint64_t peer = 0) {
  if (!result.ok()) raise(result.status(), peer);
  return *std::move(result);
}

/// Returns the bytes of a path or address: a str, bytes or os.PathLike.
std::string path_of(nb::handle value);
/// Returns the str of bytes that may not be UTF-8, as os.fsdecode() does.
nb::object text_of(const std::string& bytes);

/// Converts seconds. ValueError: negative or not a number; `what` names the argument.
Duration seconds(double value, const char* what);

/// Releases the GIL while it lives, except when the interpreter ends: a thread that reacquired the
/// GIL then would be killed inside our code. drain() waits for the threads that have released it.
class Released {
 public:
  Released();
  Released(const Released&) = delete;
  Released& operator=(const Released&) = delete;
  ~Released();

 private:
  std::optional<nb::gil_scoped_release> out_;
};
/// Disables the release of the GIL, and waits at most 1 s for the threads that have released it.
void drain();
/// Called in a forked child, which has none of these threads.
void forget_threads();
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

/// Calls act(slice) without the interpreter's lock until it returns true or `timeout` has passed,
/// and returns its last result. Signals are handled between slices. No `timeout`: no limit.
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

/// Calls `act`, a submission, without the GIL if it is ordered by a stream of the user: the driver
/// may block while that stream's queue is full.
template <class Act>
auto submitting(const TransferOptions& options, Act act) {
  constexpr auto kNone = StreamOrder::Kind::none;
  std::optional<Released> released;
  if (options.after.kind != kNone || options.release.kind != kNone) released.emplace();
  return act();
}

// options.cpp
/// Parses the keywords of a submission. `local`, which may be null, is the region whose GPU's
/// current stream "current" means; of kSeveralDevices there is none. The result points into
/// `options`, which must outlive it.
TransferOptions transfer_options(const nb::kwargs& options, const PyRegion* local);
/// Parses the stream of a capture; "current" as above.
StreamOrder capture_stream(nb::handle stream, const PyRegion& local);
/// Returns the bytes of a notification; None has none. They must outlive the result.
std::span<const std::byte> notification_of(nb::handle value);

// shapes.cpp
using Blocks = std::vector<Block>;
using ParsedShape = std::variant<Blocks, const PyPages*, const Strides*>;
/// Parses a shape: None (all of both regions), Pages, Strides, or blocks as rows of three.
ParsedShape shape_of(nb::handle value, std::uint64_t here, std::uint64_t there);
/// Returns the library's form of the shape, which refers to it.
inline Shape view_of(const ParsedShape& shape) {
  if (const auto* pages = std::get_if<const PyPages*>(&shape)) return (*pages)->pages();
  if (const auto* strides = std::get_if<const Strides*>(&shape)) return **strides;
  return std::get<Blocks>(shape);
}

/// Returns the object that must live until the transfer is quiet: the owner of index lists on a
/// GPU, which the kernel reads when it runs.
inline nb::object keepalive_of(const ParsedShape& shape) {
  const auto* pages = std::get_if<const PyPages*>(&shape);
  return pages != nullptr ? (*pages)->on_gpu : nb::object();
}
/// Returns the indices of a list or of an integer array.
IndexList indices_of(nb::handle value, const char* what);

// transfers.cpp
/// Returns the Python object of a transfer. Keeps `memory`, if any, alive until the transfer is
/// quiet, even if the object is dropped.
nb::object keep(Transfer transfer, std::uint64_t peer, const nb::object& memory = {});

// submissions.cpp
/// Parses "write" or "read".
Op op_of(const std::string& name);

void bind_submissions(nb::class_<Peer>& peer);
void bind_shapes(nb::module_& module);
void bind_memory(nb::module_& module);
void bind_transfers(nb::module_& module);
void bind_captures(nb::module_& module);
/// Adds Prepared.capture().
void bind_capture(nb::class_<PyPrepared>& prepared);
void bind_futures(nb::module_& module);
void bind_peers(nb::module_& module);
void bind_engine(nb::module_& module);

}  // namespace linkspan::python
