// base/shared_page.hpp - an array of 64-bit atomics in a memfd that two processes map: region
// liveness, completion flags, notifications.
//
// The size is fixed and sealed, so that neither side can remove pages from the other's mapping.
// Threads: immutable after construction; the elements are atomic.
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
  /// Access of the other process. The creator always writes.
  enum class Others : std::uint8_t { read, write };

  static Result<SharedPage> create(const char* name, std::size_t count, Others others);
  /// Maps a peer's page. corrupt: it has another size, or is not sealed against shrinking.
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
  const Fd& fd() const noexcept { return fd_; }  ///< Valid after create() only.
  Fd release_fd() noexcept { return std::move(fd_); }

 private:
  SharedPage(Fd fd, Atomic* atomics, std::size_t count)
      : fd_(std::move(fd)), atomics_(atomics), count_(count) {}

  Fd fd_;
  Atomic* atomics_;  // null only after a move
  std::size_t count_;
};

}  // namespace linkspan::base
