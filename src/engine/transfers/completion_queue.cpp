#include "engine/transfers/completion_queue.hpp"

#include <algorithm>

namespace linkspan::engine {

Result<std::shared_ptr<CompletionQueueState>> CompletionQueueState::create() {
  auto event = base::WakeEvent::create();
  if (!event.ok()) return event.status();
  // Shared by its handles and the transfers that were added and are not quiet.
  return std::shared_ptr<CompletionQueueState>(new CompletionQueueState(*std::move(event)));
}

void CompletionQueueState::reserve() {
  const base::MutexLock lock(mutex_);
  const std::size_t needed = cookies_.size() + reserved_ + 1;
  if (cookies_.capacity() < needed) cookies_.reserve(2 * needed);
  ++reserved_;
}

void CompletionQueueState::push(std::uint64_t cookie) noexcept {
  const base::MutexLock lock(mutex_);
  --reserved_;
  cookies_.push_back(cookie);
  if (cookies_.size() == 1) event_.wake();
}

std::vector<std::uint64_t> CompletionQueueState::pop(std::size_t at_most) {
  const base::MutexLock lock(mutex_);
  const auto end =
      cookies_.begin() + static_cast<std::ptrdiff_t>(std::min(at_most, cookies_.size()));
  std::vector<std::uint64_t> popped(cookies_.begin(), end);
  cookies_.erase(cookies_.begin(), end);
  if (!popped.empty() && cookies_.empty()) event_.clear();
  return popped;
}

}  // namespace linkspan::engine
