#include "transport/tcp/iovecs.hpp"

namespace linkspan::transport::tcp {

void append(std::vector<iovec>& parts, std::size_t from, void* at, std::size_t bytes) {
  if (parts.size() > from &&
      static_cast<std::byte*>(parts.back().iov_base) + parts.back().iov_len == at)
    parts.back().iov_len += bytes;
  else
    parts.push_back({at, bytes});
}

bool advance(std::vector<iovec>& parts, std::size_t& part, std::size_t bytes) noexcept {
  while (part < parts.size() && bytes >= parts[part].iov_len) bytes -= parts[part++].iov_len;
  if (part == parts.size()) return true;
  parts[part].iov_base = static_cast<std::byte*>(parts[part].iov_base) + bytes;
  parts[part].iov_len -= bytes;
  return false;
}

}  // namespace linkspan::transport::tcp
