#include "transport/local/completion_flags.hpp"

namespace linkspan::transport::local {

Result<std::unique_ptr<CompletionFlags>> CompletionFlags::create() {
  auto page =
      base::SharedPage::create("linkspan-tally", kCompletionFlags, base::SharedPage::Others::write);
  if (!page.ok()) return page.status();
  return std::unique_ptr<CompletionFlags>(new CompletionFlags(*std::move(page)));
}

CompletionFlags::CompletionFlags(base::SharedPage page) : page_(std::move(page)) {
  for (std::uint32_t flag = kCompletionFlags; flag > 0; --flag) free_.push_back(flag - 1);
}

std::optional<std::uint32_t> CompletionFlags::acquire() {
  if (free_.empty()) return std::nullopt;
  const std::uint32_t flag = free_.back();
  free_.pop_back();
  page_[flag].store(0, std::memory_order_relaxed);
  return flag;
}

Result<std::unique_ptr<CompletionFlagsView>> CompletionFlagsView::open(const base::Fd& fd) {
  auto page = base::SharedPage::open(fd, kCompletionFlags, base::SharedPage::Others::write);
  if (!page.ok()) return page.status();
  return std::unique_ptr<CompletionFlagsView>(new CompletionFlagsView(*std::move(page)));
}

}  // namespace linkspan::transport::local
