// copy/kernels/unpack.cu - gathers the fragments of many receives out of bounce pools, in one
// launch.
//
// A warp takes one entry at a time; the launcher has cut what is large, so that all warps have
// some. The list lies in mapped host memory: a warp reads up to 32 entries at once and begins with
// what it has, whatever the others wait for. Fragments are pages less headers, so source and
// destination are rarely congruent: a lane then loads the two aligned words that its 16 bytes lie
// in and shifts them.
//
// MEMORY MODEL
//   Guarantee  what the entries' sources held when the kernel started is at their destinations when
//              it has ended, visible to all that comes later in the stream: a WriteValue after it
//              is the signal. It raises none, fences nothing (fact: Ptx.TheCopyKernelFencesNothing)
//              and has no order among entries, which must not overlap.
//   Payload    ordinary loads and stores (fact: Ptx.NothingIsLoadedNonCoherently). Stores of 16
//              bytes for all but the first and last ones of an entry, whatever the alignment (fact:
//              Ptx.TheUnpackKernelStores16BytesWhateverTheAlignment).
//   Beyond     the aligned 16 bytes around an entry's first and last are read, and what is not the
//              entry's is dropped: no page is touched that has none of its bytes.
//   Launch     512 threads, any number of CTAs. No barrier; every loop ends with the list.
#include "copy/kernels/copy_piece.cuh"

/// An entry of the list is 16 bytes: u32 offset in the pool, u32 bytes (24 bits) and pool (8 bits),
/// u64 destination.
struct LinkspanUnpack {
  const uint4* list;
  unsigned long long pools[32];
  unsigned count;
};

namespace {

/// Returns the 16 bytes from byte `skip` of `low` on, continued in `high`.
__device__ uint4 shifted(const uint4& low, const uint4& high, unsigned skip) {
  const bool two = (skip & 8) != 0, one = (skip & 4) != 0;
  const unsigned a = two ? low.z : low.x, b = two ? low.w : low.y, c = two ? high.x : low.z,
                 d = two ? high.y : low.w, e = two ? high.z : high.x, f = two ? high.w : high.y;
  const unsigned v = one ? b : a, w = one ? c : b, x = one ? d : c, y = one ? e : d,
                 z = one ? f : e, bits = skip % 4 * 8;
  return make_uint4(__funnelshift_r(v, w, bits), __funnelshift_r(w, x, bits),
                    __funnelshift_r(x, y, bits), __funnelshift_r(y, z, bits));
}

/// Copies like copy_runs(), but from `skip` bytes after each word of `from`. With N = 1 it copies
/// all words.
template <unsigned N>
__device__ void copy_shifted_runs(uint4* to, const uint4* from, unsigned skip, unsigned count,
                                  unsigned& done, unsigned lane) {
  for (; count - done >= N * kWarp; done += N * kWarp) {
    uint4 low[N], high[N];
#pragma unroll
    for (unsigned k = 0; k < N; ++k) {
      low[k] = from[done + k * kWarp + lane];
      high[k] = from[done + k * kWarp + lane + 1];  // the neighbour lane's word, which is in L1
    }
#pragma unroll
    for (unsigned k = 0; k < N; ++k) to[done + k * kWarp + lane] = shifted(low[k], high[k], skip);
  }
}

/// Copies with one warp, where `to` and `from` are not congruent modulo 16.
__device__ void copy_shifted(unsigned long long to, unsigned long long from, unsigned bytes,
                             unsigned lane) {
  unsigned head = static_cast<unsigned>(0 - to) % 16;
  if (head > bytes) head = bytes;
  const unsigned count = (bytes - head) / 16, tail = (bytes - head) % 16;
  auto* out = reinterpret_cast<unsigned char*>(to);
  const auto* in = reinterpret_cast<const unsigned char*>(from);
  if (lane < head) out[lane] = in[lane];
  if (lane < tail) out[bytes - tail + lane] = in[bytes - tail + lane];
  const auto skip = static_cast<unsigned>(from + head) % 16;
  auto* words = reinterpret_cast<uint4*>(to + head);
  const auto* in_words = reinterpret_cast<const uint4*>(from + head - skip);
  unsigned done = 0;
  copy_shifted_runs<4>(words, in_words, skip, count, done, lane);
  copy_shifted_runs<2>(words, in_words, skip, count, done, lane);
  copy_shifted_runs<1>(words, in_words, skip, count, done, lane);
  if (done + lane < count)
    words[done + lane] = shifted(in_words[done + lane], in_words[done + lane + 1], skip);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    linkspan_unpack(const __grid_constant__ LinkspanUnpack p) {
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned warp = (blockIdx.x * kThreads + threadIdx.x) / kWarp;
  const unsigned warps = gridDim.x * (kThreads / kWarp);
  const unsigned share = p.count / warps + (p.count % warps != 0);
  const unsigned run = share < kWarp ? share : kWarp;
  for (unsigned long long first = static_cast<unsigned long long>(warp) * run; first < p.count;
       first += static_cast<unsigned long long>(warps) * run) {
    const auto left = static_cast<unsigned>(p.count - first);
    const unsigned length = left < run ? left : run;
    const uint4 mine = p.list[first + (lane < length ? lane : 0)];
    for (unsigned i = 0; i < length; ++i) {
      const unsigned word = __shfl_sync(~0u, mine.y, i), bytes = word & 0xffffff;
      const unsigned long long from = p.pools[word >> 24] + __shfl_sync(~0u, mine.x, i);
      const unsigned long long to =
          __shfl_sync(~0u, mine.z, i) | static_cast<unsigned long long>(__shfl_sync(~0u, mine.w, i))
                                            << 32;
      if (((to ^ from) & 15) == 0)
        copy_words<uint4>(to, from, bytes, lane);
      else
        copy_shifted(to, from, bytes, lane);
    }
  }
}
