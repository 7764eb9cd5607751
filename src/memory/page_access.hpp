// memory/page_access.hpp - what this process may do with its own pages.
//
// Asked at registration, so that no right is published which the pages do not have, and before
// bytes are promised to a peer that the kernel then reads from their place. Threads: any thread.
#pragma once

#include <cstdint>

namespace linkspan::memory {

struct PageAccess {
  bool read = true, write = true;
};

/// What all pages of the range permit by their mappings; neither where a part is not mapped. Both
/// where /proc cannot be read: then only the copy itself tells. Costs one call a mapping, or on
/// kernels before 6.11 the text of /proc/self/maps. Pages beyond the end of a file are not seen.
PageAccess page_access(std::uint64_t address, std::uint64_t bytes);

/// Whether every page can be read now, as a read of it would find: false where one is not mapped,
/// or lies beyond the end of its file. Makes pages present that are not. Where the kernel cannot
/// tell (before 5.14, memory that a driver has mapped), whether all are mapped.
bool pages_are_readable(std::uint64_t address, std::uint64_t bytes) noexcept;

}  // namespace linkspan::memory
