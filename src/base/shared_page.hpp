// base/shared_page.hpp - count in a memfd that two processes map: leases, tallies, notifications.
//
// The size is fixed and sealed, so that neither side can take the pages away under the other.
// Threads: immutable after construction; the count are atomic.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/fd.hpp"

namespace linkspan::base {

class SharedPage {
 public:
  using Atomic = std::atomic<std::uint64_t>;
  static_assert(Atomic::is_always_lock_free);
  /// What others may do with it. Its maker writes.
  enum class Others : std::uint8_t { read, write };

  static Result<SharedPage> create(const char* name, std::size_t count, Others others);
  /// A peer's. corrupt: of another size, or its owner could shrink it under our feet.
  static Result<SharedPage> open(const Fd& fd, std::size_t count, Others ours);

  SharedPage(SharedPage&& other) noexcept
      : fd_(std::move(other.fd_)),
        atomics_(std::exchange(other.atomics_, nullptr)),
        count_(other.count_) {}
  SharedPage(const SharedPage&) = delete;
  SharedPage& operator=(const SharedPage&) = delete;
  SharedPage& operator=(SharedPage&&) = delete;
  ~SharedPage();

  Atomic& operator[](std::size_t i) const noexcept { return atomics_[i]; }
  const Fd& fd() const noexcept { return fd_; }  ///< The maker's; an opened one has none.
  Fd release_fd() noexcept { return std::move(fd_); }

 private:
  SharedPage(Fd fd, Atomic* atomics, std::size_t count)
      : fd_(std::move(fd)), atomics_(atomics), count_(count) {}

  Fd fd_;
  Atomic* atomics_;  // null only after a move
  std::size_t count_;
};

}  // namespace linkspan::base
