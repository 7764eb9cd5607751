#include "transport/verbs/access_table.hpp"

#include <algorithm>
#include <utility>

namespace linkspan::transport::verbs {

void AccessTable::remove(AccessHolder& holder) noexcept {
  const base::MutexLock lock(mutex_);
  for (auto& [serial, list] : all_)
    std::erase_if(list, [&](const Access& each) { return each.holder == &holder; });
  std::erase_if(all_, [](const auto& each) { return each.second.empty(); });
  holder.queue.clear();
  holder.pending = false;
}

void AccessTable::grant(AccessHolder& holder, std::uint64_t serial) {
  const base::MutexLock lock(mutex_);
  auto& list = all_[serial];
  const auto found = std::ranges::find(list, &holder, &Access::holder);
  if (found == list.end()) list.push_back({.holder = &holder});
}

void AccessTable::on_returned(AccessHolder& holder, std::uint64_t serial) {
  const base::MutexLock lock(mutex_);
  const auto found = all_.find(serial);
  if (found == all_.end()) return;
  std::erase_if(found->second, [&](const Access& each) { return each.holder == &holder; });
  if (found->second.empty()) all_.erase(found);
}

bool AccessTable::revoke(std::uint64_t serial, bool immediately) {
  const base::MutexLock lock(mutex_);
  const auto found = all_.find(serial);
  if (found == all_.end()) return true;
  for (Access& each : found->second) {
    if (each.asked && (each.asked_immediately || !immediately)) continue;
    each.holder->queue.push_back({.serial = serial, .immediately = immediately});
    each.asked = true;
    each.asked_immediately = immediately;
    each.holder->pending = true;
    each.holder->channel.request_progress();
  }
  return false;
}

std::vector<Revocation> AccessTable::take(AccessHolder& holder) {
  const base::MutexLock lock(mutex_);
  holder.pending = false;
  return std::exchange(holder.queue, {});
}

}  // namespace linkspan::transport::verbs
