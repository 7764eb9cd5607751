// copy/kernels/copy_list.cuh - copies a list of pieces with all warps of a launch.
//
// GUARANTEE: that of copy_piece.cuh, and no order among pieces. *abort is read before each piece,
// one piece ahead so that the read costs nothing. Every loop ends with the list.
#pragma once

#include "copy/kernels/copy_piece.cuh"

namespace {

constexpr unsigned kStaged = 512;  // pieces of a CTA in shared memory, 12 KiB

__device__ unsigned load_flag(const unsigned* flag) {
  unsigned value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}

/// Copies the pieces; a warp that finds *abort non-zero starts no other one. Returns true in the
/// lanes of a warp that has left out pieces. Called by all threads of all CTAs.
__device__ bool copy_list(const LinkspanPiece* list, unsigned count, const unsigned* abort) {
  __shared__ LinkspanPiece staged[kStaged];
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned warp = threadIdx.x / kWarp;
  // Runs of equal length go round the CTAs; a short list still reaches all of them.
  const unsigned share = count / gridDim.x + (count % gridDim.x != 0);
  const unsigned run = share < kStaged ? share : kStaged;

  bool stopped = false;
  unsigned stop = lane == 0 ? load_flag(abort) : 0;
  for (unsigned long long first = static_cast<unsigned long long>(blockIdx.x) * run; first < count;
       first += static_cast<unsigned long long>(gridDim.x) * run) {
    const auto left = static_cast<unsigned>(count - first);
    const unsigned length = left < run ? left : run;
    const auto* source = reinterpret_cast<const unsigned long long*>(list + first);
    auto* target = reinterpret_cast<unsigned long long*>(staged);
    for (unsigned i = threadIdx.x; i < 3 * length; i += kThreads) target[i] = source[i];
    __syncthreads();
    for (unsigned i = warp; i < length; i += kThreads / kWarp) {
      if (__shfl_sync(~0u, stop, 0) != 0) {
        stopped = true;
        break;
      }
      if (lane == 0) stop = load_flag(abort);
      copy_piece(staged[i], lane);
    }
    __syncthreads();  // before the next run takes the place of this one
  }
  return stopped;
}

}  // namespace
