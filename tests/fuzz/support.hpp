// tests/fuzz/support.hpp - what the fuzzers share: an input that is read bit by bit, the kinds of
// fds that a peer may send, and a count of those that are open.
//
// Threads: one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/fd.hpp"

namespace linkspan::fuzz {

/// An input; past its end there are zeros.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size)
      : left_(reinterpret_cast<const std::byte*>(data), size) {}
  bool empty() const noexcept { return left_.empty(); }
  std::uint8_t byte() {
    const auto first = take(1);
    return first.empty() ? std::uint8_t{0} : std::to_integer<std::uint8_t>(first[0]);
  }
  std::uint16_t word() {
    const std::uint8_t low = byte();
    return static_cast<std::uint16_t>(low | byte() << 8);
  }
  /// Returns at most `count` bytes. The caller copies them where they are parsed: aligned as by
  /// new, and ending with their allocation, so that the sanitizer sees an access beyond.
  std::span<const std::byte> take(std::size_t count) {
    const auto first = left_.first(std::min(count, left_.size()));
    left_ = left_.subspan(first.size());
    return first;
  }
  std::vector<std::byte> rest() {
    const auto all = take(left_.size());
    return {all.begin(), all.end()};
  }

 private:
  std::span<const std::byte> left_;
};

/// Numbers are part of the corpus.
enum class FdKind : std::uint8_t {
  event,
  memory,  ///< A page, sealed as a region is.
  unsealed_memory,
  growing_memory,  ///< Sealed against shrinking only.
  empty_memory,
  leases,  ///< A table of leases as a peer has it, with serials 1 to 8 alive.
  tally,
  folder,
  socket,
  pidfd,  ///< A pidfd of this process.
  file,
  kinds,
};
/// Returns a new descriptor of that kind.
base::Fd make_fd(std::uint8_t kind);

std::size_t open_fds();
/// Reports a finding that no sanitizer sees.
[[noreturn]] void found(const char* what);
inline void demand(bool holds, const char* what) {
  if (!holds) found(what);
}

}  // namespace linkspan::fuzz
