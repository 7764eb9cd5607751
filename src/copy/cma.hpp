// copy/cma.hpp - copies between this process and another, or within this one, by system calls that
// answer EFAULT.
//
// copy_across() is the path where neither process can map the other's memory and the peer runs as
// the same user: the kernel copies once, from user page to user page. copy_within() copies for a
// peer into or out of memory that its owner may have unmapped, truncated or mapped read-only; a
// memcpy would end this process by SIGSEGV or SIGBUS.
// Threads: any thread; blocks on page faults of either process.
// Invariants: the functions have no state.
#pragma once

#include <cstdint>
#include <span>

#include "copy/copier.hpp"

namespace linkspan::copy {

/// The process that owns the memory. The pidfd guards against a reused pid.
struct OtherProcess {
  std::int64_t pid = 0;
  int pidfd = -1;                 ///< Borrowed.
  ProcessProof* proof = nullptr;  ///< Borrowed. Null: no proof is needed.
  /// Out: whether the last copy ended within kPrompt. Borrowed; may be null.
  std::atomic<bool>* prompt = nullptr;
};

/// Returns OK if the kernel lets this process copy to and from that process's memory, without
/// touching a page of it; else permission_denied, disconnected or unsupported.
Status may_copy_across(std::int64_t pid);

/// Copies between this process and `other`. `read`: Piece::from is the other's address; else
/// Piece::to is. disconnected: the process has ended, at the latest during the copy, so what was
/// read may be anything. permission_denied: the kernel refuses, or the process lacks its proof.
/// unreachable: an address is not mapped in one of the processes; pieces before it were copied.
Status copy_across(const OtherProcess& other, bool read, std::span<const Piece> pieces);

/// Stores an aligned u64. unreachable: its page cannot be written. The kernel is asked first, so
/// memory that is unmapped between the answer and the store still ends the process.
Status copy_within(std::span<const Piece> pieces);

/// Returns whether copy_within() copies the piece by one store, so that a reader that polls it
/// never sees a part.
bool is_u64(const Piece& piece) noexcept;

/// Stores an aligned value. unreachable: its page cannot be written. The kernel is asked first, so
/// memory that is unmapped between the answer and the store still ends the process.
Status store_u64(std::uint64_t to, std::uint64_t value);

}  // namespace linkspan::copy
