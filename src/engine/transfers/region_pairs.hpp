// engine/transfers/region_pairs.hpp - the pairs of regions of a transfer that has several.
//
// On the path of a byte: a connector moves pages of the same 122 pairs again and again, so a list
// of pairs is found, checked and acquired once, and kept for the next transfer between them.
// Threads: any thread.
// Invariants: while a RegionPairs is acquired none of its local regions is removed. The cache has
// no list with a region that the user has deregistered, or whose last RemoteRegion the user has
// dropped.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/fork.hpp"
#include "base/mutex.hpp"
#include "memory/registry.hpp"
#include "transport/transport.hpp"

namespace linkspan::engine {

/// A peer's region with one Mapping for each transport that reaches it.
/// Threads: immutable after construction; destroyed without the peer's mutex.
struct ImportedRegion : std::enable_shared_from_this<ImportedRegion> {
  std::uint64_t peer = 0;  ///< Peer::id()
  std::uint64_t incarnation = 0, serial = 0;
  std::string name;
  MemoryKind kind = MemoryKind::host;
  std::uint64_t bytes = 0;
  Permissions peers;
  /// In the order of the transports; null where the peer sent no key of that transport.
  std::vector<std::unique_ptr<transport::Mapping>> mappings;
};

/// The two regions, the direction and the transport of a submission.
struct TransferEndpoints {
  std::uint64_t peer = 0;
  Op op = Op::write;
  std::size_t transport = 0;                          // index of the transport that carries it
  std::shared_ptr<const memory::Registration> local;  // also the registry's
  std::shared_ptr<ImportedRegion> remote;             // also the user's RemoteRegion
};

/// The sizes of the two regions of a pair, for the transport that carries it.
struct RegionSizes {
  std::uint64_t here = 0, there = 0;
};
RegionSizes sizes_of(const TransferEndpoints& between);

/// Pairs of one peer and direction, in the user's order. Shared by transfers in flight and the
/// cache, through AcquiredPairs.
class RegionPairs {
 public:
  explicit RegionPairs(std::vector<TransferEndpoints> pairs);  // then acquire_first()
  RegionPairs(const RegionPairs&) = delete;
  RegionPairs& operator=(const RegionPairs&) = delete;
  ~RegionPairs() = default;  // requires that all have released it

  std::span<const TransferEndpoints> all() const noexcept { return pairs_; }
  /// The same as a Batch names them.
  const transport::BatchPair& for_batch(std::size_t index) const noexcept {
    return batches_[index];
  }
  const RegionSizes& sizes(std::size_t index) const noexcept { return sizes_[index]; }
  /// Returns whether a plan that was made for the smallest() pair is good for all.
  bool alike() const noexcept { return alike_; }
  /// Returns the pair whose regions are not larger than any other's, where the pairs are alike().
  std::size_t smallest() const noexcept { return smallest_; }
  /// No other list of this process has it.
  std::uint64_t number() const noexcept { return number_; }

  /// Acquires all local regions, or none: false if one was deregistered.
  [[nodiscard]] bool acquire_first() noexcept;
  /// Counts one more user. Returns false once all have released it: then it must not be used.
  [[nodiscard]] bool acquire() noexcept;
  /// The last one releases the local regions.
  void release() noexcept;

 private:
  const std::vector<TransferEndpoints> pairs_;
  std::vector<transport::BatchPair> batches_;
  std::vector<RegionSizes> sizes_;  // here, as looking at each region takes longer than its plan
  const std::uint64_t number_;
  std::size_t smallest_ = 0;
  bool alike_ = false;
  std::atomic<std::uint32_t> users_{0};
};

/// One user's share of a RegionPairs: acquired until its end.
class AcquiredPairs {
 public:
  AcquiredPairs() = default;
  /// Null if a local region was deregistered.
  static AcquiredPairs make(std::vector<TransferEndpoints> pairs);
  /// A further share; null if the others have ended.
  static AcquiredPairs share(const std::shared_ptr<RegionPairs>& pairs);
  AcquiredPairs(AcquiredPairs&&) noexcept = default;
  AcquiredPairs& operator=(AcquiredPairs&& other) noexcept {
    pairs_.swap(other.pairs_);
    return *this;
  }
  AcquiredPairs(const AcquiredPairs&) = delete;
  AcquiredPairs& operator=(const AcquiredPairs&) = delete;
  ~AcquiredPairs() { (void)release(); }

  explicit operator bool() const noexcept { return pairs_ != nullptr; }
  const RegionPairs* operator->() const noexcept { return pairs_.get(); }
  const RegionPairs& operator*() const noexcept { return *pairs_; }
  const std::shared_ptr<RegionPairs>& get() const noexcept { return pairs_; }
  /// Ends the share. Returns what may unmap memory when it is destroyed.
  std::shared_ptr<RegionPairs> release() noexcept {
    if (pairs_ != nullptr) pairs_->release();
    return std::exchange(pairs_, nullptr);
  }

 private:
  explicit AcquiredPairs(std::shared_ptr<RegionPairs> acquired) : pairs_(std::move(acquired)) {}

  std::shared_ptr<RegionPairs> pairs_;  // also of other shares
};

/// The regions of one transfer: its own pair, or several of which that is the first.
struct TransferPairs : TransferEndpoints {
  AcquiredPairs pairs;  // null: one

  std::span<const TransferEndpoints> all_pairs() const noexcept {
    const TransferEndpoints& own = *this;
    return pairs ? pairs->all() : std::span(&own, 1);
  }
  /// Makes it a transfer between these pairs.
  void use(AcquiredPairs several) {
    pairs = std::move(several);
    static_cast<TransferEndpoints&>(*this) = pairs->all().front();
  }
};

/// Returns true if a plan that was made for one pair is good for the other: it has the same
/// transport, and its regions are not smaller.
bool plan_holds(const TransferEndpoints& planned, const TransferEndpoints& other);

/// The lists of the last transfers.
class RegionPairsCache : public std::enable_shared_from_this<RegionPairsCache> {
 public:
  RegionPairsCache() = default;
  RegionPairsCache(const RegionPairsCache&) = delete;
  RegionPairsCache& operator=(const RegionPairsCache&) = delete;
  ~RegionPairsCache() = default;

  /// Returns the list of `count` pairs for which `is_it(index, pair)` is true; null if there is
  /// none.
  template <class Is>
  AcquiredPairs find(std::size_t count, const Is& is_it) LINKSPAN_EXCLUDES(mutex_) {
    const base::MutexLock lock(mutex_);
    for (const AcquiredPairs& list : lists_) {
      if (!list || list->all().size() != count) continue;
      std::size_t same = 0;
      while (same < count && is_it(same, list->all()[same])) ++same;
      if (same == count) return AcquiredPairs::share(list.get());
    }
    return {};
  }
  /// Keeps a list in the place of the one that came first.
  void add(AcquiredPairs list) LINKSPAN_EXCLUDES(mutex_);
  /// Drops the lists with that region of this side, or of a peer.
  void drop(const memory::Registration& local) LINKSPAN_EXCLUDES(mutex_);
  void drop(const ImportedRegion& remote) LINKSPAN_EXCLUDES(mutex_);
  void clear() LINKSPAN_EXCLUDES(mutex_);

  /// Returns what the user owns of an import: the end of its last copy drops the lists with it.
  std::shared_ptr<ImportedRegion> owned_by_user(std::shared_ptr<ImportedRegion> imported);

 private:
  static constexpr std::size_t kLists = 16;

  template <class Has>
  void drop_where(const Has& has) LINKSPAN_EXCLUDES(mutex_);

  const base::ForkWatch fork_;
  base::Mutex mutex_;
  std::array<AcquiredPairs, kLists> lists_ LINKSPAN_GUARDED_BY(mutex_);
  std::size_t next_ LINKSPAN_GUARDED_BY(mutex_) = 0;
};

}  // namespace linkspan::engine
