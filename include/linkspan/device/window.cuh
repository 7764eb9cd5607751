// linkspan/device/window.cuh - gives a kernel access to a peer's memory; defines what all
// primitives share.
//
// A Window is a POD that a kernel takes by value. Host code gets it from linkspan::Window
// (linkspan/window.hpp), whose handle keeps that memory alive. If the peer's memory is mapped,
// kernels load and store there. Otherwise they queue orders for the host (proxy.cuh); the calls are
// the same.
//
// Compiles with nvcc 12.4 or newer and NVRTC for sm_80 and newer; needs libcu++ under NVRTC only. A
// host compiler accepts these headers too: a call is then one lane, and words are std::atomic_ref.
// docs/memory_model.md has the memory model, tests/device/ptx_test.py pins the instructions.
#pragma once

#if defined(__CUDACC_RTC__)
#include <cuda/std/cstddef>
#include <cuda/std/cstdint>
#else
#include <cstddef>
#include <cstdint>
#endif
#if !defined(__CUDACC__)
#include <atomic>
#include <chrono>
#include <thread>
#define LINKSPAN_DEVICE inline
#define LINKSPAN_COLD inline
#define LINKSPAN_HOST_DEVICE inline
#define LINKSPAN_UNROLL
#define LINKSPAN_NO_UNROLL
#else
#define LINKSPAN_DEVICE __device__ inline
// Kept out of line, because each instruction on the path of a small message costs time.
#define LINKSPAN_COLD __device__ __noinline__ inline
#define LINKSPAN_HOST_DEVICE __host__ __device__ inline
#define LINKSPAN_UNROLL _Pragma("unroll")
#define LINKSPAN_NO_UNROLL _Pragma("unroll 1")
#endif

namespace linkspan::device {

#if defined(__CUDACC_RTC__)
using cuda::std::size_t;
using cuda::std::uint32_t;
using cuda::std::uint64_t;
using cuda::std::uint8_t;
#else
using std::size_t;
using std::uint32_t;
using std::uint64_t;
using std::uint8_t;
#endif

/// The result of a call; the same in all lanes of its scope.
enum class Outcome : uint32_t {
  ok,
  timed_out,     ///< The time of the Bound has passed.
  aborted,       ///< The Bound's abort word is set: the host gave up, or the peer has gone.
  out_of_range,  ///< The range leaves the region, or the signal does not exist. Nothing was done.
  failed,        ///< The proxy failed; Window::failure() on the host has the reason.
};

/// Limits every wait of a kernel.
struct Bound {
  uint64_t nanoseconds = 0;  ///< Counted from the start of the wait, by %globaltimer (1 us steps).
  /// In this GPU's memory. Nonzero ends the wait; null: only the time does.
  const uint32_t* abort = nullptr;
};

/// Names the lanes that make a call together: all of them, converged, with the same arguments. A
/// warp has 32.
enum class Scope : uint8_t { thread, warp, block };

/// Describes a pad: `signals` counters of 8 bytes, then for each mailbox its counters and its slots
/// (packet.cuh). Both sides of a window use one layout, and their pads start as zeros.
struct PadLayout {
  uint32_t signals = 64;
  uint32_t mailboxes = 0;
  uint32_t mailbox_bytes = 16384;  ///< Size limit of a message by packets; a multiple of 16.

  static constexpr uint32_t kSlots = 16;  ///< Limit of a mailbox's messages in flight by packets.

  LINKSPAN_HOST_DEVICE uint64_t credits_at() const {
    return (uint64_t{signals} * 8 + 15) / 16 * 16;
  }
  LINKSPAN_HOST_DEVICE uint64_t arrivals_at() const {
    return credits_at() + uint64_t{mailboxes} * 8;
  }
  LINKSPAN_HOST_DEVICE uint64_t slots_at() const { return credits_at() + uint64_t{mailboxes} * 16; }
  LINKSPAN_HOST_DEVICE uint64_t bytes() const {
    return slots_at() + uint64_t{mailboxes} * kSlots * 2 * mailbox_bytes;
  }
};

struct ProxyEntry;

/// Describes the queue by which a kernel asks the host to act where nothing is mapped (proxy.cuh).
struct ProxyQueue {
  ProxyEntry* entries = nullptr;  ///< In mapped host memory; null: there is no proxy.
  uint64_t* state = nullptr;  ///< In mapped host memory, written by the host: taken, failed, done.
  uint64_t* tickets = nullptr;  ///< In this GPU's memory: the number of tickets given out.
  uint64_t capacity = 0;
  uint64_t patience = 0;  ///< Nanoseconds for which a call waits for room.
};

struct Window {
  unsigned char* remote = nullptr;  ///< The peer's region; null: reached by the proxy only.
  uint64_t remote_bytes = 0;
  unsigned char* local = nullptr;       ///< The local region, which the proxy reads and writes
  uint64_t local_bytes = 0;             ///< and where receive() stores messages by packets.
  unsigned char* remote_pad = nullptr;  ///< The peer's pad, whose signals kernels here raise.
  unsigned char* local_pad = nullptr;   ///< The local pad, whose signals kernels here wait for.
  PadLayout layout{};
  /// 1: any number of producers may raise one signal. 0: only this window may raise it.
  uint32_t atomics = 0;
  uint32_t wrap = ~uint32_t{0};  ///< Number of packet epochs in a cycle; smaller in tests.
  uint32_t* abort = nullptr;  ///< Set by the host when the peer has gone, or by Window::cancel().
  ProxyQueue proxy{};         ///< Used if remote and remote_pad are not mapped.

  LINKSPAN_HOST_DEVICE bool proxied() const { return proxy.entries != nullptr; }
  LINKSPAN_HOST_DEVICE Bound within(uint64_t nanoseconds) const { return {nanoseconds, abort}; }
};

/// Returns this GPU's clock in nanoseconds, which advances in steps of up to 1 us.
LINKSPAN_DEVICE uint64_t nanoseconds() {
#if defined(__CUDACC__)
  uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
#else
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

namespace detail {

// ---- words that a peer reads or writes: always 64 bits, naturally aligned -----------------------
#if defined(__CUDACC__)
LINKSPAN_DEVICE uint64_t load_acquire(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}
LINKSPAN_DEVICE uint64_t load_relaxed(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}
LINKSPAN_DEVICE uint32_t load_acquire(const uint32_t* word) {
  uint32_t value;
  asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}
LINKSPAN_DEVICE void store_release(uint64_t* word, uint64_t value) {
  asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
LINKSPAN_DEVICE void store_relaxed(uint64_t* word, uint64_t value) {
  asm volatile("st.relaxed.sys.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
LINKSPAN_DEVICE void add_release(uint64_t* word, uint64_t n) {
  asm volatile("red.release.sys.add.u64 [%0], %1;" ::"l"(word), "l"(n) : "memory");
}
/// Compares and exchanges, atomically among this GPU's threads only. Returns the word's old value.
LINKSPAN_DEVICE uint64_t exchange_if(uint64_t* word, uint64_t expected, uint64_t value) {
  uint64_t old;
  asm volatile("atom.relaxed.gpu.cas.b64 %0, [%1], %2, %3;"
               : "=l"(old)
               : "l"(word), "l"(expected), "l"(value)
               : "memory");
  return old;
}
/// Loads two words of a slot, each of them whole, in no order.
LINKSPAN_DEVICE void load_pair(const uint64_t* words, uint64_t& first, uint64_t& second) {
  asm volatile("ld.relaxed.sys.v2.u64 {%0, %1}, [%2];"
               : "=l"(first), "=l"(second)
               : "l"(words)
               : "memory");
}
LINKSPAN_DEVICE void store_pair(uint64_t* words, uint64_t first, uint64_t second) {
  asm volatile("st.relaxed.sys.v2.u64 [%0], {%1, %2};" ::"l"(words), "l"(first), "l"(second)
               : "memory");
}
LINKSPAN_DEVICE void fence() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
LINKSPAN_DEVICE void give_way() {}
struct alignas(16) Chunk {
  uint32_t words[4];
};
#else
inline uint64_t load_acquire(const uint64_t* word) {
  return std::atomic_ref(const_cast<uint64_t&>(*word)).load(std::memory_order_acquire);
}
inline uint64_t load_relaxed(const uint64_t* word) {
  return std::atomic_ref(const_cast<uint64_t&>(*word)).load(std::memory_order_relaxed);
}
inline uint32_t load_acquire(const uint32_t* word) {
  return std::atomic_ref(const_cast<uint32_t&>(*word)).load(std::memory_order_acquire);
}
inline void store_release(uint64_t* word, uint64_t value) {
  std::atomic_ref(*word).store(value, std::memory_order_release);
}
inline void store_relaxed(uint64_t* word, uint64_t value) {
  std::atomic_ref(*word).store(value, std::memory_order_relaxed);
}
inline void add_release(uint64_t* word, uint64_t n) {
  std::atomic_ref(*word).fetch_add(n, std::memory_order_release);
}
inline uint64_t exchange_if(uint64_t* word, uint64_t expected, uint64_t value) {
  std::atomic_ref(*word).compare_exchange_strong(expected, value, std::memory_order_relaxed);
  return expected;
}
inline void load_pair(const uint64_t* words, uint64_t& first, uint64_t& second) {
  first = std::atomic_ref(const_cast<uint64_t&>(words[0])).load(std::memory_order_relaxed);
  second = std::atomic_ref(const_cast<uint64_t&>(words[1])).load(std::memory_order_relaxed);
}
inline void store_pair(uint64_t* words, uint64_t first, uint64_t second) {
  store_relaxed(words, first);
  store_relaxed(words + 1, second);
}
inline void fence() {}  // with one lane the release that follows suffices
inline void give_way() { std::this_thread::yield(); }  // the thread that raises may need this core
struct alignas(16) Chunk {
  uint32_t words[4];
};
#endif

// ---- the lanes of a scope ------------------------------------------------------------------
#if defined(__CUDACC__)
template <Scope S>
LINKSPAN_DEVICE unsigned rank() {
  if constexpr (S == Scope::thread) return 0;
  const unsigned linear = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  return S == Scope::warp ? linear % 32 : linear;
}
template <Scope S>
LINKSPAN_DEVICE unsigned lanes() {
  if constexpr (S == Scope::thread) return 1;
  return S == Scope::warp ? 32 : blockDim.x * blockDim.y * blockDim.z;
}
template <Scope S>
LINKSPAN_DEVICE void sync() {
  if constexpr (S == Scope::warp) __syncwarp();
  if constexpr (S == Scope::block) __syncthreads();
}
LINKSPAN_COLD Outcome worst_of_block(unsigned mine) {
  unsigned worst = 0;
  for (unsigned each = 1; each <= static_cast<unsigned>(Outcome::failed); ++each)
    if (__syncthreads_or(mine == each) != 0) worst = each;
  return static_cast<Outcome>(worst);
}
/// Waits for all lanes. Returns the worst of their outcomes in all of them.
template <Scope S>
LINKSPAN_DEVICE Outcome agree(Outcome mine) {
  const auto bits = static_cast<unsigned>(mine);
  if constexpr (S == Scope::warp) {
    const unsigned worst = __reduce_max_sync(~0u, bits);
    __syncwarp();  // orders memory, which a reduction does not
    return static_cast<Outcome>(worst);
  }
  if constexpr (S == Scope::block) {
    // One barrier suffices in the common case that all are ok.
    if (__syncthreads_or(static_cast<int>(bits)) == 0) return Outcome::ok;
    return worst_of_block(bits);
  }
  return mine;
}
#else
template <Scope S>
inline unsigned rank() {
  return 0;
}
template <Scope S>
inline unsigned lanes() {
  return 1;
}
template <Scope S>
inline void sync() {}
template <Scope S>
inline Outcome agree(Outcome mine) {
  return mine;
}
#endif

/// Measures how long a wait takes. Reads the clock at each 64th call only, so a short wait reads no
/// clock.
class Patience {
 public:
  LINKSPAN_DEVICE explicit Patience(Bound bound) : bound_(bound) {}
  /// Returns ok while the wait may go on.
  LINKSPAN_DEVICE Outcome spent() {
    if (++spins_ % 64 != 0) return Outcome::ok;
    give_way();
    if (bound_.abort != nullptr && load_acquire(bound_.abort) != 0) return Outcome::aborted;
    const uint64_t time = nanoseconds();
    if (start_ == 0) start_ = time;
    return time - start_ > bound_.nanoseconds ? Outcome::timed_out : Outcome::ok;
  }

 private:
  const Bound bound_;
  uint64_t start_ = 0;
  uint32_t spins_ = 0;
};

/// Waits, with one lane, until the word is at least `at_least`. An `ok` is an acquire at system
/// scope.
LINKSPAN_DEVICE Outcome wait_at_least(const uint64_t* word, uint64_t at_least, Bound bound) {
  if (load_acquire(word) >= at_least) return Outcome::ok;
  Patience patience(bound);
  while (load_acquire(word) < at_least)
    if (const Outcome spent = patience.spent(); spent != Outcome::ok)
      // the value may have arrived since
      return load_acquire(word) >= at_least ? Outcome::ok : spent;
  return Outcome::ok;
}

/// Combines conditions, so that they cost one jump.
template <class... Bools>
LINKSPAN_DEVICE bool any(Bools... each) {
  return (static_cast<unsigned>(each) | ...) != 0;
}

LINKSPAN_DEVICE bool within(uint64_t offset, uint64_t bytes, uint64_t size) {
  return offset <= size && bytes <= size - offset;
}

/// Computes as an integer, because the pad of a proxied window is null.
LINKSPAN_DEVICE uint64_t* word_at(unsigned char* pad, uint64_t offset) {
  return reinterpret_cast<uint64_t*>(reinterpret_cast<uint64_t>(pad) + offset);
}

}  // namespace detail
}  // namespace linkspan::device
