// copy/kernels/resident.cu - one CTA that stays for a while and copies what the host asks for.
//
// The host writes a command into one line of mapped host memory; the CTA copies and stores the
// command's number. That saves a launch, about 1 us of a copy of 8 bytes between two GPUs.
//
// MEMORY MODEL
//   Guarantee  what the source held when the command was written is at the destination when
//              *done has reached the command's number, visible to CPU code that acquires *done, and
//              to kernels and copies that start after it. Commands run one after the other.
//   Command    five words of 8 bytes, each the command's number (its low 32 bits) above 32 bits of
//              content. Each word is loaded whole (relaxed, system scope), so a word that has the
//              number also has its content, and the words need no order.
//   Payload    ordinary loads after a fence at system scope, since this kernel may have seen older
//              bytes; ordinary stores, a barrier of the CTA, then ONE release at system scope
//              (fact: Ptx.TheResidentKernelFencesOnceBeforeAndOnceBehindACommand).
//   End        the kernel ends `idle` ns after the last command, `stay` ns after its start, or at
//              the command to end (bytes = ~0). *left is written last: after it *done does not
//              change any more. The clock ends every wait.
//   Launch     one CTA of 512 threads.
#include "copy/kernels/copy_piece.cuh"

struct LinkspanResident {
  const unsigned long long* commands;  // kCommandWords each kLineWords
  unsigned long long *done, *left;
  unsigned long long next, launch;  // the first number, and what *left is to be
  unsigned long long idle, stay;
  unsigned lines;
};

namespace {

constexpr unsigned kLineWords = 8, kCommandWords = 5;
constexpr unsigned kAlone = 4096;  // largest copy that one warp does as fast as all warps

__device__ unsigned long long load_command(const unsigned long long* word) {
  unsigned long long value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

/// Publishes what the threads of the CTA wrote before the last barrier.
__device__ void release(unsigned long long* word, unsigned long long value) {
  asm volatile("fence.acq_rel.sys; st.relaxed.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value)
               : "memory");
}

__device__ unsigned long long nanoseconds() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 1) linkspan_resident(LinkspanResident p) {
  __shared__ unsigned content[kCommandWords];
  __shared__ bool go_on;
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const unsigned long long begin = nanoseconds();
  unsigned long long last = begin;
  for (unsigned long long number = p.next;; ++number) {
    if (warp == 0) {
      const unsigned long long* line = p.commands + number % p.lines * kLineWords;
      const auto epoch = static_cast<unsigned>(number);
      for (;;) {
        unsigned long long word = static_cast<unsigned long long>(epoch) << 32;
        if (lane < kCommandWords) word = load_command(line + lane);
        const bool here = __all_sync(~0u, static_cast<unsigned>(word >> 32) == epoch) != 0;
        if (here && lane < kCommandWords) content[lane] = static_cast<unsigned>(word);
        const unsigned long long now = __shfl_sync(~0u, nanoseconds(), 0);
        const bool over = now - last > p.idle || now - begin > p.stay;
        if (lane == 0) go_on = here;
        if (here) last = now;
        if (here || over) break;
      }
      asm volatile("fence.acq_rel.sys;" ::: "memory");
    }
    __syncthreads();
    const unsigned bytes = content[4];
    if (!go_on || bytes == ~0u) break;
    const unsigned long long to = content[0] | static_cast<unsigned long long>(content[1]) << 32;
    const unsigned long long from = content[2] | static_cast<unsigned long long>(content[3]) << 32;
    // A warp's share is a multiple of 512 bytes, so that all but the last are as well aligned as
    // the first.
    constexpr unsigned kWarps = kThreads / kWarp;
    const unsigned share =
        bytes <= kAlone ? bytes : (bytes + kWarps * 512 - 1) / (kWarps * 512) * 512;
    const unsigned offset = warp * share;
    if (offset < bytes) {
      const unsigned rest = bytes - offset;
      copy_piece({to + offset, from + offset, rest < share ? rest : share}, lane);
    }
    __syncthreads();  // also protects `content` from the next command
    if (threadIdx.x == 0) release(p.done, number);
  }
  if (threadIdx.x == 0) release(p.left, p.launch);
}
