#include "transport/tcp/iovecs.hpp"

#include <algorithm>

namespace linkspan::transport::tcp {

void Iovecs::push_back(void* at, std::size_t bytes) {
  all_.push_back({at, bytes});
  bytes_left_ += bytes;
}

void Iovecs::append(void* at, std::size_t bytes) {
  if (all_.empty() || static_cast<std::byte*>(all_.back().iov_base) + all_.back().iov_len != at)
    return push_back(at, bytes);
  all_.back().iov_len += bytes;
  bytes_left_ += bytes;
}

void Iovecs::repeat(std::span<std::byte> buffer, std::uint64_t bytes) {
  for (std::uint64_t some = 0; bytes != 0; bytes -= some) {
    some = std::min<std::uint64_t>(bytes, buffer.size());
    push_back(buffer.data(), some);
  }
}

std::size_t Iovecs::replace(std::size_t from, std::size_t to, std::span<std::byte> buffer) {
  from = std::max(from, next_);
  if (from >= to) return to;
  std::uint64_t bytes = 0;
  for (std::size_t i = from; i < to; ++i) bytes += all_[i].iov_len;
  const auto at = [this](std::size_t i) { return all_.begin() + static_cast<std::ptrdiff_t>(i); };
  const std::vector<iovec> after(at(to), all_.end());
  all_.erase(at(from), all_.end());
  bytes_left_ -= bytes;  // of `after` they stay
  repeat(buffer, bytes);
  to = all_.size();
  all_.insert(all_.end(), after.begin(), after.end());
  return to;
}

bool Iovecs::advance(std::size_t bytes) noexcept {
  bytes_left_ -= bytes;
  while (next_ < all_.size() && bytes >= all_[next_].iov_len) bytes -= all_[next_++].iov_len;
  if (next_ == all_.size()) return true;
  all_[next_].iov_base = static_cast<std::byte*>(all_[next_].iov_base) + bytes;
  all_[next_].iov_len -= bytes;
  return false;
}

void Iovecs::clear() noexcept {
  all_.clear();
  next_ = 0;
  bytes_left_ = 0;
}

}  // namespace linkspan::transport::tcp
