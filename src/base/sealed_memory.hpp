// base/sealed_memory.hpp - memfds that processes share: created here, or a peer's, verified before
// it is mapped.
//
// A process that maps a file of another process dies by SIGBUS if that process removes pages. So
// only tmpfs memory that is sealed against shrinking is mapped: pages of hugetlb can be punched out
// in spite of the seal. Threads: any thread.
#pragma once

#include <array>
#include <cstdint>

#include "base/fd.hpp"

namespace linkspan::base {

/// Creates a memfd of `bytes`, not sealed yet. system: RLIMIT_FSIZE is smaller, and the kernel
/// would end the process by SIGXFSZ.
Result<Fd> make_memfd(const char* name, std::uint64_t bytes);

struct SealedMemory {
  std::uint64_t bytes = 0;
  std::array<std::uint64_t, 2> id{};  ///< Device and inode; equal for the same memory.
};

/// Verifies a peer's fd and returns its size and id. Reads the seals first, which only memory has:
/// other calls on a file may block on the process that serves it. corrupt: not tmpfs memory, or not
/// sealed.
Result<SealedMemory> sealed_memory(const Fd& fd);

}  // namespace linkspan::base
