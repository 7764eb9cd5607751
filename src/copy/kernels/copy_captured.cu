// copy/kernels/copy_captured.cu - the node of a CUDA graph that a captured post is: copies a list
// of pieces, unless its gate is closed, and counts the launch.
//
// The list and the gate lie in the GPU's memory, because each launch reads them again. The counts
// lie in mapped host memory, where the CPU reads them without a call.
//
// MEMORY MODEL
//   Guarantee  a launch that is counted in `completed` has copied every piece before, visible to a
//              reader of the count that acquires, at system scope: to this CPU, and through a
//              message of this CPU's to the peer (fact:
//              Ptx.TheCapturedKernelFencesBeforeItLeavesAndBeforeItCounts).
//   Gate       each CTA adds one to `entered` and reads `closed` by one atomic operation on the 8
//              bytes of both; when it copies no more it fences and adds one to `left`. Who closes
//              the gate writes the 4 bytes of `closed`, which the GPU's L2 cache orders among those
//              operations, then reads `left` and after it `entered`. If they are equal, no CTA that
//              found the gate open still runs, and none will find it open. `closed` is never reset.
//   Refusal    a CTA that leaves a piece out sets kRefused in `left`, and so does each that finds
//              the gate closed. The last CTA of a launch counts it as completed or as refused.
//   Overlap    launches of one graph executable never overlap. If those of two do, a count may run
//              ahead of the data until both have ended; the gate is right in any case.
//   Payload    as copy_blocks.cu.
//   Launch     512 threads, `ctas` CTAs.
#include "copy/kernels/copy_list.cuh"

/// Matches the host's CapturedGate, in the GPU's memory.
struct LinkspanCapturedGate {
  unsigned long long closed_and_entered;  // `closed` in the low half, `entered` in the high one
  unsigned long long left;                // and kRefused
};

/// Matches the host's CapturedCounts, in mapped host memory. Only this GPU adds to it, so that no
/// atomics over PCIe are needed.
struct LinkspanCapturedCounts {
  unsigned long long completed, refused;
};

struct LinkspanCaptured {
  const LinkspanPiece* list;
  LinkspanCapturedGate* gate;
  LinkspanCapturedCounts* counts;
  unsigned count, ctas;
};

namespace {

__device__ void fence() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

/// Returns what the word was before.
__device__ unsigned long long add(unsigned long long* word, unsigned long long value) {
  unsigned long long before;
  asm volatile("atom.relaxed.sys.global.add.u64 %0, [%1], %2;"
               : "=l"(before)
               : "l"(word), "l"(value)
               : "memory");
  return before;
}

__device__ void count_one(unsigned long long* count) {
  asm volatile("red.relaxed.sys.global.add.u64 [%0], 1;" ::"l"(count) : "memory");
}

constexpr unsigned long long kRefused = 1ull << 63;  // some CTA has left out pieces

__device__ void refuse(unsigned long long* left) {
  asm volatile("red.relaxed.sys.global.or.b64 [%0], %1;" ::"l"(left), "l"(kRefused) : "memory");
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    linkspan_copy_captured(LinkspanCaptured p) {
  const auto* const closed = reinterpret_cast<const unsigned*>(&p.gate->closed_and_entered);
  if (threadIdx.x == 0)
    if (static_cast<unsigned>(add(&p.gate->closed_and_entered, 1ull << 32)) != 0)
      refuse(&p.gate->left);
  __syncthreads();  // no warp reads the gate before
  if (copy_list(p.list, p.count, closed) && threadIdx.x % kWarp == 0) refuse(&p.gate->left);
  __syncthreads();
  if (threadIdx.x != 0) return;
  fence();
  const unsigned long long before = add(&p.gate->left, 1);
  if (((before & ~kRefused) + 1) % p.ctas != 0) return;
  fence();  // the other CTAs' pieces are visible from here on
  count_one((before & kRefused) != 0 ? &p.counts->refused : &p.counts->completed);
}
