// transport/local/completion_flags.hpp - how the peer tells that a copy it ran for us has ended, in
// memory.
//
// A message would wake our Control thread, which after some milliseconds of sleep takes 0.2 ms
// (two H200, a 1 GiB transfer of 19 ms); so the asking side shares one page of words with the peer,
// and the peer writes the end of a copy there, when the copy is quiet. Who waits looks at the flag
// as at one that a GPU writes. The message `executed` still follows: it wakes those who sleep, and
// brings the words of an error.
// Threads: under the scheduler's lock on both sides; the words are atomic.
// Invariants: a flag is 0 from acquire() until the peer's one write to it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/shared_page.hpp"

namespace linkspan::transport::local {

inline constexpr std::uint32_t kCompletionFlags = 512;  // a page

/// The asking side's.
class CompletionFlags {
 public:
  static Result<std::unique_ptr<CompletionFlags>> create();

  std::optional<std::uint32_t> acquire();  ///< Nothing: all are in use.
  void release(std::uint32_t flag) { free_.push_back(flag); }
  /// The peer has written that the copy ended as OK.
  bool succeeded(std::uint32_t flag) const noexcept {
    return page_[flag].load(std::memory_order_acquire) == kSucceeded;
  }
  const base::Fd& fd() const noexcept { return page_.fd(); }

  static constexpr std::uint64_t kSucceeded = 1;

 private:
  explicit CompletionFlags(base::SharedPage page);

  const base::SharedPage page_;
  std::vector<std::uint32_t> free_;
};

/// The executing side's view of the peer's.
class CompletionFlagsView {
 public:
  static Result<std::unique_ptr<CompletionFlagsView>> open(
      const base::Fd& fd);  ///< As SharedPage::open().

  void report_success(std::uint32_t flag) noexcept {
    if (flag < kCompletionFlags)
      page_[flag].store(CompletionFlags::kSucceeded, std::memory_order_release);
  }

 private:
  explicit CompletionFlagsView(base::SharedPage page) : page_(std::move(page)) {}
  const base::SharedPage page_;
};

}  // namespace linkspan::transport::local
