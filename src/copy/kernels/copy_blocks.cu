// copy/kernels/copy_blocks.cu - copies a list of contiguous pieces, or of pages, in one launch.
//
// A warp takes one piece at a time. The lists may lie in mapped host memory: each entry is read
// over PCIe once, coalesced (of pieces a CTA takes a run into shared memory, of page indices a warp
// takes up to 32). Any size of a piece is right; pieces of at most 64 KiB spread well (the launcher
// splits).
//
// MEMORY MODEL
//   Guarantee  what the pieces' sources held when the kernel started is at their destinations when
//              it has ended, visible to all that comes later in the stream: a WriteValue after it
//              is the signal. The kernel itself raises none and fences nothing (fact:
//              Ptx.TheCopyKernelFencesNothing). No order among pieces: a byte that two write
//              ends as either's; to read what another writes is undefined.
//   Payload    ordinary loads and stores, never const __restrict__ or __ldg: a peer may write it,
//              and those make ld.global.nc, outside the model (fact:
//              Ptx.NothingIsLoadedNonCoherently). No alignment is asked for; 16 bytes a lane move
//              where source and destination are congruent modulo 16 (fact:
//              Ptx.CongruentPiecesMove16BytesALane).
//   Abort      *abort is read before each piece, one piece ahead so that the read costs nothing
//              (fact: Ptx.TheAbortWordIsLoadedRelaxedAtSystemScope).
//              Non-zero: a warp that has seen it starts no other piece and sets *aborted; a piece
//              that was started is finished. The word lies in THIS GPU's memory and is set through
//              another stream: strong reads of one word of host memory go one by one, 1.2 us each
//              for the whole GPU (8192 pieces: 10 ms instead of 0.1). *aborted may be host memory.
//   Refusal    *refused, host memory, tells of a page that leaves its memory; of several warps'
//              relaxed stores one stays.
//   Launch     512 threads, any number of CTAs. Every loop ends with the list.
// Built by NVRTC 12.8 for sm_80, 90, 100 and PTX; no header of CUDA is included.

#include "copy/kernels/copy_list.cuh"

/// Page i goes from `from` + from_index[i] * page_bytes to `to` + to_index[i] * page_bytes, in
/// `parts` parts of part_bytes each, the last of what is left. count * parts is below 2^32, count
/// below 2^30. A page with an index above to_last or from_last is not touched.
struct LinkspanPages {
  unsigned long long to, from, page_bytes, part_bytes;
  const unsigned *to_index, *from_index;
  unsigned to_last, from_last, count, parts;
};

/// Pages of several pairs of regions: `to` and `from` of each are in `at`, and those in `pages` are
/// not read. The lists of a pair begin list_step entries behind those of the pair before; 0: all
/// have the same. pairs * count * parts is below 2^32. A parameter by value, because all warps read
/// it and constant memory is cached.
struct LinkspanPagesOfPairs {
  LinkspanPages pages;
  unsigned pairs, list_step;
  struct {
    unsigned long long to, from;
  } at[240];
};

namespace {

struct OnePair {
  const LinkspanPages& pages;
  __device__ static constexpr unsigned count() { return 1; }
  __device__ static constexpr unsigned of(unsigned, unsigned) { return 0; }
  __device__ static constexpr unsigned list_of(unsigned) { return 0; }
  __device__ static constexpr unsigned broadcast(unsigned, unsigned) { return 0; }
  __device__ unsigned long long to(unsigned) const { return pages.to; }
  __device__ unsigned long long from(unsigned) const { return pages.from; }
};

struct SeveralPairs {
  const LinkspanPagesOfPairs& all;
  __device__ unsigned count() const { return all.pairs; }
  __device__ static unsigned of(unsigned part, unsigned of_each) { return part / of_each; }
  __device__ unsigned list_of(unsigned pair) const { return pair * all.list_step; }
  __device__ static unsigned broadcast(unsigned pair, unsigned lane) {
    return __shfl_sync(~0u, pair, lane);
  }
  __device__ unsigned long long to(unsigned pair) const { return all.at[pair].to; }
  __device__ unsigned long long from(unsigned pair) const { return all.at[pair].from; }
};

constexpr unsigned kLeaves = ~0u;  // no part of a page: count is not 0

/// Matches the host's RefusedPage.
__device__ void refuse(unsigned long long* refused, unsigned page, unsigned to, unsigned from,
                       bool of_target) {
  const unsigned long long word = 1ull << 63 | (of_target ? 1ull << 62 : 0) |
                                  static_cast<unsigned long long>(page) << 32 |
                                  (of_target ? to : from);
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(refused), "l"(word) : "memory");
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    linkspan_copy_blocks(const LinkspanPiece* list, unsigned count, const unsigned* abort,
                         unsigned* aborted) {
  if (copy_list(list, count, abort) && threadIdx.x % kWarp == 0) *aborted = 1;
}

namespace {

/// Copies the pages of each pair.
template <class Pairs>
__device__ void copy_pages(const LinkspanPages& pages, const Pairs& pairs, const unsigned* abort,
                           unsigned* aborted, unsigned long long* refused) {
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned warp = (blockIdx.x * kThreads + threadIdx.x) / kWarp;
  const unsigned warps = gridDim.x * (kThreads / kWarp);
  const unsigned of_each = pages.count * pages.parts;
  const unsigned parts = pairs.count() * of_each;
  const unsigned share = parts / warps + (parts % warps != 0);
  const unsigned run = share < kWarp ? share : kWarp;

  unsigned stop = lane == 0 ? load_flag(abort) : 0;
  for (unsigned long long first = static_cast<unsigned long long>(warp) * run; first < parts;
       first += static_cast<unsigned long long>(warps) * run) {
    const auto left = static_cast<unsigned>(parts - first);
    const unsigned length = left < run ? left : run;
    const unsigned mine = static_cast<unsigned>(first) + (lane < length ? lane : 0);
    const unsigned pair = pairs.of(mine, of_each);
    const unsigned page = (mine - pair * of_each) / pages.parts;
    const unsigned to = pages.to_index[pairs.list_of(pair) + page];
    const unsigned from = pages.from_index[pairs.list_of(pair) + page];
    const bool leaves = to > pages.to_last || from > pages.from_last;
    if (leaves) refuse(refused, page, to, from, to > pages.to_last);
    const unsigned part = leaves ? kLeaves : mine % pages.parts;
    for (unsigned i = 0; i < length; ++i) {
      if (__shfl_sync(~0u, stop, 0) != 0) {
        if (lane == 0) *aborted = 1;
        return;
      }
      if (lane == 0) stop = load_flag(abort);
      const unsigned which = __shfl_sync(~0u, part, i);
      if (which == kLeaves) continue;
      const unsigned long long offset = which * pages.part_bytes;
      const unsigned long long rest = pages.page_bytes - offset;
      const unsigned between = pairs.broadcast(pair, i);
      copy_piece({pairs.to(between) + __shfl_sync(~0u, to, i) * pages.page_bytes + offset,
                  pairs.from(between) + __shfl_sync(~0u, from, i) * pages.page_bytes + offset,
                  rest < pages.part_bytes ? rest : pages.part_bytes},
                 lane);
    }
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    linkspan_copy_pages(LinkspanPages pages, const unsigned* abort, unsigned* aborted,
                        unsigned long long* refused) {
  copy_pages(pages, OnePair{pages}, abort, aborted, refused);
}

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    linkspan_copy_pages_of_pairs(const __grid_constant__ LinkspanPagesOfPairs all,
                                 const unsigned* abort, unsigned* aborted,
                                 unsigned long long* refused) {
  copy_pages(all.pages, SeveralPairs{all}, abort, aborted, refused);
}
