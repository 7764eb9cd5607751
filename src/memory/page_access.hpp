// memory/page_access.hpp - the rights of this process on its own pages.
//
// Queried at registration, so that no right is published that the pages do not have, and before
// bytes are promised to a peer that the kernel then reads in place. Off the path of a byte.
// Threads: any thread.
// Invariants: the functions have no state.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace linkspan::memory {

struct PageAccess {
  bool read = true, write = true;
};

/// One mapping of this process.
struct PageRange {
  std::uint64_t begin = 0, end = 0;
  PageAccess access;
  /// Says whether the pages belong to a file or a memfd. Those of cudaHostAlloc do not (fact:
  /// Identity.PinnedMemoryIsAnonymousAndTheKernelCopiesIt). Set by parse_range().
  bool of_file = false;
};

/// Parses a mapping's line in /proc/self/maps or smaps; nothing: it is none.
std::optional<PageRange> parse_range(std::string_view line);

/// Returns the rights that all pages of the range have by their mappings; none if a part is not
/// mapped. Returns both if /proc cannot be read: then only the copy itself shows it. Costs one
/// system call for each mapping, or on kernels before 6.11 the text of /proc/self/maps. Does not
/// see pages beyond the end of a file.
PageAccess page_access(std::uint64_t address, std::uint64_t bytes);

/// Returns whether every page can be read now: false if one is not mapped, or is beyond the end of
/// its file. Faults missing pages in. If the kernel cannot tell (before 5.14, memory that a driver
/// has mapped), returns whether all pages are mapped.
bool pages_are_readable(std::uint64_t address, std::uint64_t bytes) noexcept;

}  // namespace linkspan::memory
