#include "engine/completion_queue.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

namespace linkspan::engine {

Result<std::shared_ptr<CompletionQueueState>> CompletionQueueState::create() {
  auto bell = base::Fd::from("eventfd", ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!bell.ok()) return bell.status();
  // Shared by its handles and the transfers that were added and are not quiet.
  return std::shared_ptr<CompletionQueueState>(new CompletionQueueState(*std::move(bell)));
}

void CompletionQueueState::push(std::uint64_t cookie) {
  const base::MutexLock lock(mutex_);
  cookies_.push_back(cookie);
  if (cookies_.size() != 1) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(bell_.get(), &one, sizeof one);
}

std::vector<std::uint64_t> CompletionQueueState::take(std::size_t at_most) {
  const base::MutexLock lock(mutex_);
  const auto end =
      cookies_.begin() + static_cast<std::ptrdiff_t>(std::min(at_most, cookies_.size()));
  std::vector<std::uint64_t> taken(cookies_.begin(), end);
  cookies_.erase(cookies_.begin(), end);
  if (!taken.empty() && cookies_.empty()) {
    std::uint64_t rings = 0;
    [[maybe_unused]] const auto read = ::read(bell_.get(), &rings, sizeof rings);
  }
  return taken;
}

}  // namespace linkspan::engine
