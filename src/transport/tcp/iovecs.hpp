// transport/tcp/iovecs.hpp - the parts of a frame, as the kernel takes and fills them.
//
// Threads: externally synchronised.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <vector>

namespace linkspan::transport::tcp {

/// Appends the range. Extends the last iovec instead if the range directly follows it and it is not
/// one of the first `from`, so contiguous pages in a staging buffer use one iovec.
void append(std::vector<iovec>& parts, std::size_t from, void* at, std::size_t bytes);
/// Removes moved bytes from the front. Returns true if nothing is left.
bool advance(std::vector<iovec>& parts, std::size_t& part, std::size_t bytes) noexcept;

}  // namespace linkspan::transport::tcp
