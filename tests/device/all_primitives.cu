// Has a kernel for every primitive of linkspan/device/*.cuh in every scope. tests/device compiles
// it and reads the PTX; nothing runs it.
#include "linkspan/device/packet.cuh"

namespace device = linkspan::device;
using device::Outcome;
using device::Scope;
using device::Window;
using u64 = device::uint64_t;
using u32 = device::uint32_t;

#define KERNEL extern "C" __global__ void
/// Returns the window as one whose memory is mapped, so that the compiler omits the code for a
/// proxy.
__device__ inline Window mapped(Window window) {
  window.proxy.entries = nullptr;
  return window;
}

/// `call` of a window `w`: NAME as any window has it, mapped_NAME as one does that is mapped.
#define BOTH(name, parameters, call)      \
  KERNEL name parameters { *end = call; } \
  KERNEL mapped_##name parameters {       \
    w = mapped(w);                        \
    *end = call;                          \
  }
/// The same of each scope, which is S in `call`: NAME_thread, NAME_warp, NAME_block.
#define SCOPED(name, scope, parameters, call) \
  KERNEL name##_##scope parameters {          \
    constexpr Scope S = Scope::scope;         \
    *end = call;                              \
  }                                           \
  KERNEL mapped_##name##_##scope parameters { \
    constexpr Scope S = Scope::scope;         \
    w = mapped(w);                            \
    *end = call;                              \
  }
#define EACH_SCOPE(name, parameters, call) \
  SCOPED(name, thread, parameters, call)   \
  SCOPED(name, warp, parameters, call)     \
  SCOPED(name, block, parameters, call)

EACH_SCOPE(put, (Window w, u64 at, const void* src, u64 bytes, Outcome* end),
           device::put<S>(w, at, src, bytes))
EACH_SCOPE(put_signal, (Window w, u64 at, const void* src, u64 bytes, Outcome* end),
           device::put_signal<S>(w, at, src, bytes, 1))
EACH_SCOPE(get, (Window w, u64 at, void* dst, u64 bytes, Outcome* end),
           device::get<S>(w, dst, at, bytes))
EACH_SCOPE(flush, (Window w, u64 time, Outcome* end), device::flush<S>(w, w.within(time)))
EACH_SCOPE(wait_signal, (Window w, u64 at_least, u64 time, Outcome* end),
           device::wait_signal<S>(w, 1, at_least, w.within(time)))
EACH_SCOPE(send, (Window w, u64 n, u64 at, const void* src, u64 bytes, u64 time, Outcome* end),
           device::send<S>(w, 0, n, at, src, bytes, w.within(time)))
EACH_SCOPE(receive, (Window w, u64 n, u64 at, u64 bytes, u64 time, Outcome* end),
           device::receive<S>(w, 0, n, at, bytes, w.within(time)))
BOTH(signal_add, (Window w, u64 n, Outcome* end), device::signal_add(w, 1, n))
BOTH(read_signal, (Window w, u64* end), device::read_signal(w, 1))
BOTH(put_signal_grid, (Window w, u64 at, const void* src, u64 bytes, u32* arrived, Outcome* end),
     device::put_signal_grid(w, at, src, bytes, 1, arrived))

extern __shared__ __align__(128) unsigned char stage[];
BOTH(put_bulk, (Window w, u64 at, const void* src, u64 bytes, u32 size, Outcome* end),
     device::put_bulk(w, at, src, bytes, stage, size))
KERNEL bulk_of_either(Window w, u64 at, const void* src, u64 bytes, bool shared, Outcome* end) {
  *end = device::put_bulk(w, at, shared ? stage + 4096 : src, bytes, stage, 4096);
}

// Parts, of which the whole has more than one.
KERNEL part_enqueue(Window w, u64 local, u64 remote, u64 bytes, Outcome* end) {
  *end = device::detail::enqueue(w.proxy, w.abort, device::ProxyOp::put, local, remote, bytes, 0);
}
KERNEL part_drain(Window w, u64 time, Outcome* end) {
  *end = device::detail::drain_queue<Scope::block>(w, w.within(time));
}
KERNEL part_copy(void* to, const void* from, u64 bytes) {
  device::detail::copy<Scope::block>(to, from, bytes);
}
