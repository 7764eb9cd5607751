// base/sealed_memory.hpp - memfds that processes share: made here, or a peer's that is looked at
// before it is mapped.
//
// Whoever maps a file of another process dies by SIGBUS where that process can take pages away. So
// only memory of tmpfs is mapped, and only if it is sealed against shrinking: pages of hugetlb can
// be punched out beside that seal.
// Threads: any thread.
#pragma once

#include <array>
#include <cstdint>

#include "base/fd.hpp"

namespace linkspan::base {

/// A memfd of that size, not sealed yet. system: RLIMIT_FSIZE is smaller; the kernel would end the
/// process by SIGXFSZ.
Result<Fd> make_memfd(const char* name, std::uint64_t bytes);

struct SealedMemory {
  std::uint64_t bytes = 0;
  std::array<std::uint64_t, 2> id{};  ///< Device and inode: the same memory, the same id.
};

/// What a peer's fd is. Asks for its seals first, which nothing but memory has: other questions to
/// a file may wait for the process that serves it. corrupt: no memory of tmpfs, or not sealed.
Result<SealedMemory> sealed_memory(const Fd& fd);

}  // namespace linkspan::base
