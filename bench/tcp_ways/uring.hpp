// bench/tcp_ways/uring.hpp - io_uring by its bare system calls: one ring of a thread's, which says
// what it wants and waits for what has been done.
//
// Threads: the one that made it.
#pragma once

#include <linux/io_uring.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/fd.hpp"
#include "linkspan/types.hpp"

namespace linkspan::bench {

class Ring {
 public:
  struct Done {  // of io_uring_cqe, which ends with an array of no length
    std::uint64_t user_data;
    std::int32_t res;
    std::uint32_t flags;
  };
  /// unsupported: the kernel has none, is older than 5.11, or may not be asked; says which.
  static Result<std::unique_ptr<Ring>> create(unsigned entries);
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() = default;

  /// The kernel knows that one.
  bool offers(io_uring_op op) const;
  /// Cleared, to be filled; as many as `entries` until the next submit_and_wait().
  io_uring_sqe& add() noexcept;
  /// timed_out: `limit` has passed before `count` were done.
  Status submit_and_wait(unsigned count, Duration limit);
  std::optional<Done> pop() noexcept;

 private:
  struct Unmap {
    std::size_t bytes = 0;
    void operator()(std::byte* at) const noexcept;
  };
  using Mapping = std::unique_ptr<std::byte, Unmap>;
  static Result<Mapping> map(const base::Fd& ring, std::size_t bytes, std::uint64_t what);

  Ring(base::Fd fd, const io_uring_params& params, Mapping rings, Mapping entries);
  unsigned* word(std::uint32_t at) const noexcept;

  base::Fd fd_;
  io_uring_params params_;
  Mapping rings_, entries_;
  unsigned tail_ = 0, added_ = 0;
};

}  // namespace linkspan::bench
