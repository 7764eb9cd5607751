#include "engine/transfers/region_pairs.hpp"

#include <algorithm>
#include <utility>

namespace linkspan::engine {
namespace {

std::atomic<std::uint64_t> last_number{0};

}  // namespace

bool plan_holds(const TransferEndpoints& planned, const TransferEndpoints& other) {
  const RegionSizes its = sizes_of(planned), others = sizes_of(other);
  return other.transport == planned.transport && others.here >= its.here &&
         others.there >= its.there;
}

RegionSizes sizes_of(const TransferEndpoints& between) {
  const ImportedRegion& remote = *between.remote;
  return {.here = between.local->region().bytes(),
          .there = std::min(remote.bytes, remote.mappings[between.transport]->bytes())};
}

RegionPairs::RegionPairs(std::vector<TransferEndpoints> pairs)
    : pairs_(std::move(pairs)), number_(++last_number) {
  batches_.reserve(pairs_.size());
  sizes_.reserve(pairs_.size());
  for (const TransferEndpoints& pair : pairs_) {
    sizes_.push_back(sizes_of(pair));
    batches_.push_back(
        {.local = &pair.local->region(), .remote = pair.remote->mappings[pair.transport].get()});
    if (!plan_holds(pairs_[smallest_], pair)) smallest_ = batches_.size() - 1;
  }
  alike_ = std::ranges::all_of(
      pairs_, [&](const TransferEndpoints& pair) { return plan_holds(pairs_[smallest_], pair); });
}

bool RegionPairs::acquire_first() noexcept {
  for (std::size_t i = 0; i < pairs_.size(); ++i) {
    if (pairs_[i].local->acquire()) continue;
    while (i != 0) pairs_[--i].local->release();
    return false;
  }
  users_ = 1;
  return true;
}

bool RegionPairs::acquire() noexcept {
  std::uint32_t users = users_.load(std::memory_order_relaxed);
  while (users != 0)
    if (users_.compare_exchange_weak(users, users + 1)) return true;
  return false;
}

void RegionPairs::release() noexcept {
  if (--users_ != 0) return;
  for (const TransferEndpoints& pair : pairs_) pair.local->release();
}

AcquiredPairs AcquiredPairs::make(std::vector<TransferEndpoints> pairs) {
  // The user's share of an import would keep itself alive in the cache.
  for (TransferEndpoints& pair : pairs) pair.remote = pair.remote->shared_from_this();
  auto made = std::make_shared<RegionPairs>(std::move(pairs));
  return AcquiredPairs(made->acquire_first() ? std::move(made) : nullptr);
}

AcquiredPairs AcquiredPairs::share(const std::shared_ptr<RegionPairs>& pairs) {
  return AcquiredPairs(pairs->acquire() ? pairs : nullptr);
}

void RegionPairsCache::add(AcquiredPairs list) {
  const base::MutexLock lock(mutex_);
  std::swap(lists_[next_], list);  // what was there is unmapped after the unlock
  next_ = (next_ + 1) % kLists;
}

template <class Has>
void RegionPairsCache::drop_where(const Has& has) {
  std::array<AcquiredPairs, kLists> dropped;  // unmapped after the unlock
  const base::MutexLock lock(mutex_);
  for (std::size_t i = 0; i < kLists; ++i)
    if (lists_[i] && std::ranges::any_of(lists_[i]->all(), has)) std::swap(dropped[i], lists_[i]);
}

void RegionPairsCache::drop(const memory::Registration& local) {
  drop_where([&](const TransferEndpoints& pair) { return pair.local.get() == &local; });
}

void RegionPairsCache::drop(const ImportedRegion& remote) {
  drop_where([&](const TransferEndpoints& pair) { return pair.remote.get() == &remote; });
}

void RegionPairsCache::clear() {
  drop_where([](const TransferEndpoints&) { return true; });
}

std::shared_ptr<ImportedRegion> RegionPairsCache::owned_by_user(
    std::shared_ptr<ImportedRegion> imported) {
  ImportedRegion* const region = imported.get();
  return {region, [cache = weak_from_this(), owned = std::move(imported)](ImportedRegion*) mutable {
            const auto alive = cache.lock();
            if (alive != nullptr && !alive->fork_.forked()) alive->drop(*owned);
            owned.reset();
          }};
}

}  // namespace linkspan::engine
