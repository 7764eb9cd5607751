// transport/local/completion_flags.hpp - 64-bit flags in a shared page, by which the peer reports
// that a copy it ran for this side has ended.
//
// On the path of a byte: LocalEndpoint::progress polls the flag of each request to the peer, as it
// polls a flag that a GPU writes. A message alone would have to wake the control thread, which
// after some milliseconds of sleep takes 0.2 ms (two H200, a 1 GiB transfer of 19 ms). The message
// `executed` still follows: it wakes sleeping threads and carries the text of an error.
// Threads: under its transport's mutex on both sides; the flags are atomic.
// Invariants: a flag is 0 from acquire() until the peer's one write to it, when the copy is quiet.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/shared_page.hpp"

namespace linkspan::transport::local {

inline constexpr std::uint32_t kCompletionFlags = 512;  // one page

/// The requesting side's page of flags.
class CompletionFlags {
 public:
  static Result<std::unique_ptr<CompletionFlags>> create();

  std::optional<std::uint32_t> acquire();  ///< Returns nothing if all flags are in use.
  void release(std::uint32_t flag) { free_.push_back(flag); }
  /// Returns true once the peer has written that the copy ended as OK.
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

/// The executing side's view of the peer's page.
class CompletionFlagsView {
 public:
  /// Maps the page; errors as SharedPage::open().
  static Result<std::unique_ptr<CompletionFlagsView>> open(const base::Fd& fd);

  /// Sets the flag; ignores one out of range.
  void report_success(std::uint32_t flag) noexcept {
    if (flag < kCompletionFlags)
      page_[flag].store(CompletionFlags::kSucceeded, std::memory_order_release);
  }

 private:
  explicit CompletionFlagsView(base::SharedPage page) : page_(std::move(page)) {}
  const base::SharedPage page_;
};

}  // namespace linkspan::transport::local
