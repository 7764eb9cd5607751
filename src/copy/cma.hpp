// copy/cma.hpp - copies between memory of this process and of another, or within this one, by
// system calls that answer EFAULT.
//
// copy_across() is the path where neither side can map the other's memory and the peer runs as the
// same user: the kernel copies once, from user page to user page. copy_within() copies for a peer
// into or out of memory that its owner may have unmapped, truncated or mapped for reading only. A
// memcpy there would end this process by SIGSEGV or SIGBUS.
// Threads: any thread; blocks on page faults of either process.
#pragma once

#include <cstdint>
#include <span>

#include "copy/copier.hpp"

namespace linkspan::copy {

/// Whose memory, and a guard against its number having become another process's.
struct OtherProcess {
  std::int64_t pid = 0;
  int pidfd = -1;                 ///< A loan.
  ProcessProof* proof = nullptr;  ///< A loan. Null: none is asked for.
};

/// Answers whether the kernel lets this process copy to and from the other's memory, without
/// touching a page of it. permission_denied, disconnected, unsupported: it does not.
Status may_copy_across(std::int64_t pid);

/// `read`: Piece::from is the other's address; else Piece::to is. disconnected: it has ended, at
/// the latest while we copied, so what was read may be anything. permission_denied: the kernel
/// does not let us, or the process does not have its proof. unreachable: an address is not mapped,
/// in one process or the other; pieces before it were copied.
Status copy_across(const OtherProcess& other, bool read, std::span<const Piece> pieces);

/// Copies within this process. unreachable: a page of either end is not mapped, may not be read or
/// written, or lies beyond the end of its file; what lies before it was copied. An aligned value of
/// 8 bytes is stored at once. Where a sandbox forbids process_vm_readv it is a memcpy.
Status copy_within(std::span<const Piece> pieces);

/// Whether copy_within() stores the piece at once, so that process polls it never sees it in part.
bool is_u64(const Piece& piece) noexcept;

/// Stores an aligned value. unreachable: its page cannot be written. The kernel is asked first, so
/// memory that is unmapped between the answer and the store still ends the process.
Status store_u64(std::uint64_t to, std::uint64_t value);

}  // namespace linkspan::copy
