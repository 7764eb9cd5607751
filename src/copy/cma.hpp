// copy/cma.hpp - copies between this process's memory and another's by one system call.
//
// The path where neither side can map the other's memory and the peer runs as the same user. The
// kernel copies once, from user page to user page.
// Threads: any thread; blocks on page faults of either process.
#pragma once

#include <cstdint>
#include <span>

#include "copy/copier.hpp"

namespace linkspan::copy {

/// Whose memory, and a guard against its number having become another process's.
struct OtherProcess {
  std::int64_t pid = 0;
  int pidfd = -1;  ///< A loan.
};

/// `read`: Piece::from is the other's address; else Piece::to is. disconnected: it has ended, at
/// the latest while we copied, so what was read may be anything. permission_denied: the kernel
/// does not let us. unreachable: an address is not mapped, in one process or the other; pieces
/// before it were copied.
Status copy_across(const OtherProcess& other, bool read, std::span<const Piece> pieces);

}  // namespace linkspan::copy
