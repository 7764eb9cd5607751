// linkspan/device/put.cuh - copies bytes from this GPU into a peer's memory, and back.
//
// MEMORY MODEL
//   put()         a barrier of the scope, then ordinary stores by its lanes, in no order. A peer
//                 that sees a signal raised after them sees the stores. Returns when this lane's
//                 stores are issued; over the proxy when the order is queued, and then `src` is
//                 read until flush().
//   put_signal()  put(), a barrier of the scope, then ONE release at system scope by one lane,
//                 which is the signal: a reader that acquires it sees the bytes of all lanes
//                 (barrier and release are cumulative). A fence costs a round trip of the link, so
//                 each put has one.
//   put_signal_grid()  the same by all CTAs of a grid: each arrives at a counter of this GPU
//                 (acq_rel, gpu scope), and the last one releases for all; over the proxy the last
//                 one queues the order for all.
//   put_bulk()    by the bulk-copy engine of an SM (sm_90 and newer). On return its stores are
//                 complete, so a later release covers them.
//   get()         ordinary loads of the peer's memory, then a barrier: `dst` has, for all lanes,
//                 what was there when the signal was raised that this scope has waited for. Over
//                 the proxy it has that after flush().
//   flush()       orders this lane's puts before all that it does next, for every observer; over
//                 the proxy, all that was queued is applied at the peer.
//   Payload       never through a const __restrict__ pointer or __ldg: these become ld.global.nc,
//                 which is outside the model.
#pragma once

#include "linkspan/device/proxy.cuh"

namespace linkspan::device {
namespace detail {

/// Copies runs of N words a lane while there are as many, and advances. All loads of a run precede
/// its stores, so N loads are in flight.
template <unsigned N, class Word>
LINKSPAN_DEVICE void copy_runs(Word*& to, const Word*& from, uint64_t& left, unsigned step) {
  for (; left >= uint64_t{N} * step; left -= uint64_t{N} * step) {
    Word words[N];
    LINKSPAN_UNROLL
    for (unsigned k = 0; k < N; ++k) words[k] = from[k * step];
    LINKSPAN_UNROLL
    for (unsigned k = 0; k < N; ++k) to[k * step] = words[k];
    to += N * step;
    from += N * step;
  }
}
template <Scope S, class Word>
LINKSPAN_DEVICE void copy_words(unsigned char* to, const unsigned char* from, uint64_t count) {
  const unsigned step = lanes<S>(), lane = rank<S>();
  auto* out = reinterpret_cast<Word*>(to) + lane;
  const auto* in = reinterpret_cast<const Word*>(from) + lane;
  copy_runs<8>(out, in, count, step);
  copy_runs<4>(out, in, count, step);
  copy_runs<2>(out, in, count, step);
  for (uint64_t i = lane; i < count; i += step, out += step, in += step) *out = *in;
}

/// Copies; `to` and `from` must be congruent modulo the size of a Word.
template <Scope S, class Word>
LINKSPAN_DEVICE void copy_congruent(unsigned char* to, const unsigned char* from, uint64_t bytes) {
  uint64_t head = (0 - reinterpret_cast<uint64_t>(to)) % sizeof(Word);
  if (head > bytes) head = bytes;
  const uint64_t count = (bytes - head) / sizeof(Word), tail = (bytes - head) % sizeof(Word);
  for (uint64_t i = rank<S>(); i < head; i += lanes<S>()) to[i] = from[i];
  for (uint64_t i = rank<S>(); i < tail; i += lanes<S>())
    to[bytes - tail + i] = from[bytes - tail + i];
  copy_words<S, Word>(to + head, from + head, count);
}
template <Scope S>
LINKSPAN_COLD void copy_ragged(unsigned char* to, const unsigned char* from, uint64_t bytes) {
  const uint64_t apart = reinterpret_cast<uint64_t>(to) ^ reinterpret_cast<uint64_t>(from);
  if (apart % 16 == 0)
    copy_congruent<S, Chunk>(to, from, bytes);
  else if (apart % 8 == 0)
    copy_congruent<S, uint64_t>(to, from, bytes);
  else if (apart % 4 == 0)
    copy_congruent<S, uint32_t>(to, from, bytes);
  else
    copy_words<S, unsigned char>(to, from, bytes);
}

/// Copies by ordinary loads and stores, 16 bytes each where both sides allow it.
template <Scope S>
LINKSPAN_DEVICE void copy(void* to, const void* from, uint64_t bytes) {
  auto* out = static_cast<unsigned char*>(to);
  const auto* in = static_cast<const unsigned char*>(from);
  if ((reinterpret_cast<uint64_t>(out) | reinterpret_cast<uint64_t>(in) | bytes) % 16 == 0)
    copy_words<S, Chunk>(out, in, bytes / 16);
  else
    copy_ragged<S>(out, in, bytes);
}

template <Scope S>
LINKSPAN_COLD Outcome queue_put_signal(const Window& window, uint64_t offset, const void* src,
                                       uint64_t bytes, uint32_t index, uint64_t n) {
  if (index >= window.layout.signals) return Outcome::out_of_range;
  const Outcome end = queue_copy<S>(window, ProxyOp::put, src, offset, bytes);
  return end == Outcome::ok ? queue_word<S>(window, ProxyOp::add, uint64_t{index} * 8, n) : end;
}

/// Describes part `part` of `parts` of the bytes. All parts but the last are multiples of 128.
struct Share {
  uint64_t offset, bytes;
};
LINKSPAN_DEVICE Share share_of(uint64_t bytes, uint64_t part, uint64_t parts) {
  const uint64_t each = (bytes / parts + 127) / 128 * 128;
  const uint64_t offset = part * each < bytes ? part * each : bytes;
  const uint64_t rest = bytes - offset;
  return {offset, rest < each || part + 1 == parts ? rest : each};
}

}  // namespace detail

/// Copies `src` to `offset` of the peer's region. This GPU must be able to read `src`; over the
/// proxy it must lie in the window's local region.
template <Scope S>
LINKSPAN_DEVICE Outcome put(const Window& window, uint64_t offset, const void* src,
                            uint64_t bytes) {
  if (detail::any(window.proxied(), !detail::within(offset, bytes, window.remote_bytes)))
    return detail::queue_copy<S>(Window(window), ProxyOp::put, src, offset, bytes);
  detail::sync<S>();
  detail::copy<S>(window.remote + offset, src, bytes);
  return Outcome::ok;
}

/// Does put(), then adds `n` to the peer's signal `index`.
template <Scope S>
LINKSPAN_DEVICE Outcome put_signal(const Window& window, uint64_t offset, const void* src,
                                   uint64_t bytes, uint32_t index, uint64_t n = 1) {
  if (detail::any(window.proxied(), index >= window.layout.signals,
                  !detail::within(offset, bytes, window.remote_bytes)))
    return detail::queue_put_signal<S>(Window(window), offset, src, bytes, index, n);
  detail::sync<S>();
  detail::copy<S>(window.remote + offset, src, bytes);
  detail::sync<S>();
  if (detail::rank<S>() == 0)
    detail::add_release(detail::word_at(window.remote_pad, uint64_t{index} * 8), n);
  return Outcome::ok;
}

/// Copies from the peer's region. On return the bytes are in `dst`; over the proxy the copy is only
/// queued, and flush() waits for it.
template <Scope S>
LINKSPAN_DEVICE Outcome get(const Window& window, void* dst, uint64_t offset, uint64_t bytes) {
  if (detail::any(window.proxied(), !detail::within(offset, bytes, window.remote_bytes)))
    return detail::queue_copy<S>(Window(window), ProxyOp::get, dst, offset, bytes);
  detail::copy<S>(dst, window.remote + offset, bytes);
  detail::sync<S>();
  return Outcome::ok;
}

template <Scope S>
LINKSPAN_DEVICE Outcome flush(const Window& window, Bound bound) {
  if (window.proxied()) return detail::drain_queue<S>(Window(window), bound);
  detail::fence();
  return Outcome::ok;
}

#if defined(__CUDACC__)
/// Does put_signal() by all CTAs of a one-dimensional grid, each for its share. `arrived` is a word
/// of this GPU's memory, zero at first and again after each use. Two uses of one word must be
/// separated by the end of the kernel or a barrier of the grid. Block scope.
__device__ inline Outcome put_signal_grid(const Window& window, uint64_t offset, const void* src,
                                          uint64_t bytes, uint32_t index, uint32_t* arrived,
                                          uint64_t n = 1) {
  if (index >= window.layout.signals || !detail::within(offset, bytes, window.remote_bytes))
    return Outcome::out_of_range;
  __syncthreads();
  if (!window.proxied()) {
    const detail::Share share = detail::share_of(bytes, blockIdx.x, gridDim.x);
    detail::copy<Scope::block>(window.remote + offset + share.offset,
                               static_cast<const unsigned char*>(src) + share.offset, share.bytes);
    __syncthreads();
  }
  int last = 0;
  if (detail::rank<Scope::block>() == 0) {
    uint32_t before;
    asm volatile("atom.acq_rel.gpu.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(arrived), "r"(gridDim.x - 1)
                 : "memory");
    last = before + 1 == gridDim.x;
    if (last != 0 && !window.proxied())
      detail::add_release(detail::word_at(window.remote_pad, uint64_t{index} * 8), n);
  }
  if (!window.proxied() || __syncthreads_or(last) == 0) return Outcome::ok;
  return put_signal<Scope::block>(window, offset, src, bytes, index, n);
}

namespace detail {

constexpr unsigned kBulkStages = 4;

/// Copies through shared memory, with one lane. Both sides are 16-byte aligned, and `bytes` is a
/// multiple of 16.
__device__ inline void bulk_copy(unsigned char* to, const unsigned char* from, uint64_t bytes,
                                 unsigned char* stage, uint32_t stage_bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(stage));
  const uint32_t piece = (stage_bytes - 8 * kBulkStages) / kBulkStages / 128 * 128;
  const uint32_t buffers = shared, barriers = shared + kBulkStages * piece;
  const uint64_t pieces = (bytes + piece - 1) / piece;
  const auto size_of = [&](uint64_t i) {
    return static_cast<uint32_t>(i + 1 == pieces ? bytes - i * piece : piece);
  };
  const auto load = [&](uint64_t i) {
    const auto slot = static_cast<uint32_t>(i % kBulkStages);
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barriers + 8 * slot),
                 "r"(size_of(i))
                 : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(buffers + slot * piece),
        "l"(from + i * piece), "r"(size_of(i)), "r"(barriers + 8 * slot)
        : "memory");
  };
  for (unsigned i = 0; i < kBulkStages; ++i)
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(barriers + 8 * i) : "memory");
  // Makes ordinary stores visible to the bulk copies: those of the source, and those of the
  // barriers.
  asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async;" ::: "memory");
  for (uint64_t i = 0; i + 1 < kBulkStages && i < pieces; ++i) load(i);
  for (uint64_t i = 0; i < pieces; ++i) {
    const auto slot = static_cast<uint32_t>(i % kBulkStages);
    const auto phase = static_cast<uint32_t>(i / kBulkStages % 2);
    uint32_t here = 0;
    while (here == 0)
      asm volatile(
          "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
          : "=r"(here)
          : "r"(barriers + 8 * slot), "r"(phase)
          : "memory");
    asm volatile(
        "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to + i * piece),
        "r"(buffers + slot * piece), "r"(size_of(i))
        : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    // The buffer of the previous piece is free once its store has read it.
    asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
    if (i + kBulkStages - 1 < pieces) load(i + kBulkStages - 1);
  }
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");  // complete, not only read
  for (unsigned i = 0; i < kBulkStages; ++i)
    asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(barriers + 8 * i) : "memory");
#else
  (void)stage, (void)stage_bytes;
  copy<Scope::thread>(to, from, bytes);
#endif
}

}  // namespace detail

/// Does put() of block scope by the bulk-copy engine, which leaves registers and time of the lanes
/// to other work. `stage` is shared memory, 128-byte aligned, of at least 2 KiB; more than 64 KiB
/// is no faster. Ends with a barrier of the CTA. No Bound limits its wait for loads that it has
/// started. Below sm_90, over the proxy, from memory that is not global, or if the two sides are
/// not congruent modulo 16, it does put().
__device__ inline Outcome put_bulk(const Window& window, uint64_t offset, const void* src,
                                   uint64_t bytes, void* stage, uint32_t stage_bytes) {
  if (!detail::within(offset, bytes, window.remote_bytes)) return Outcome::out_of_range;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  auto* to = window.remote + offset;
  const auto* from = static_cast<const unsigned char*>(src);
  const bool congruent =
      (reinterpret_cast<uint64_t>(to) ^ reinterpret_cast<uint64_t>(from)) % 16 == 0;
  if (!window.proxied() && congruent && stage_bytes >= 2048 && __isGlobal(src)) {
    uint64_t head = (0 - reinterpret_cast<uint64_t>(to)) % 16;
    if (head > bytes) head = bytes;
    const uint64_t whole = (bytes - head) / 16 * 16;
    __syncthreads();
    detail::copy<Scope::block>(to, from, head);
    detail::copy<Scope::block>(to + head + whole, from + head + whole, bytes - head - whole);
    if (detail::rank<Scope::block>() == 0 && whole != 0)
      detail::bulk_copy(to + head, from + head, whole, static_cast<unsigned char*>(stage),
                        stage_bytes);
    __syncthreads();
    return Outcome::ok;
  }
#endif
  (void)stage, (void)stage_bytes;
  const Outcome end = put<Scope::block>(window, offset, src, bytes);
  __syncthreads();
  return end;
}
#else
inline Outcome put_signal_grid(const Window& window, uint64_t offset, const void* src,
                               uint64_t bytes, uint32_t index, uint32_t*, uint64_t n = 1) {
  return put_signal<Scope::thread>(window, offset, src, bytes, index, n);
}
inline Outcome put_bulk(const Window& window, uint64_t offset, const void* src, uint64_t bytes,
                        void*, uint32_t) {
  return put<Scope::thread>(window, offset, src, bytes);
}
#endif

}  // namespace linkspan::device
