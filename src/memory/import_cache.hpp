// memory/import_cache.hpp - opens each peer's allocation once, however many regions lie in it.
//
// A thousand tensors of a peer lie in a few allocations, and each open costs milliseconds. The
// cache gives all of them one Value, which closes itself when the last of its users lets it go.
// Threads: any thread. Opening runs without the mutex; of those who want the same key at once, one
// opens and the rest wait for it, until their deadlines.
// Invariants: at most one open of a key is under way; a Value that is in use is not opened again.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "linkspan/status.hpp"

namespace linkspan::memory {

/// Which allocation of which life of a peer, opened for which of our devices.
struct ImportKey {
  std::uint64_t incarnation = 0;
  std::array<std::uint64_t, 2> allocation{};  ///< {CUDA buffer id, 0}, or a memfd's {dev, inode}.
  int device = -1;                            ///< Our ordinal; -1: the CPU.
  friend auto operator<=>(const ImportKey&, const ImportKey&) = default;  // NOLINT(*-use-nullptr)
};

template <class Key, class Value>
class ImportCache {
 public:
  using Open = std::function<Result<std::unique_ptr<Value>>()>;

  /// The open Value, or what open() makes. If another's open() fails, ours is tried: keys may
  /// differ in what they bring, and an error is not remembered. timed_out: another one's open()
  /// outlasted the deadline; open() bounds itself.
  Result<std::shared_ptr<Value>> get(const Key& key, base::Deadline deadline, const Open& open)
      LINKSPAN_EXCLUDES(mutex_) {
    {
      base::MutexLock lock(mutex_);
      erase_expired();
      for (;;) {
        CacheEntry& entry = entries_[key];
        if (std::shared_ptr<Value> value = entry.value.lock()) return value;
        if (!entry.opening) {
          entry.opening = true;
          break;
        }
        if (deadline.passed())
          return Status(Code::timed_out, Scope::request, "another import of this memory hangs");
        changed_.wait(mutex_, deadline);
      }
    }
    Result<std::unique_ptr<Value>> opened = open();
    // Shared by the cache's users only; the cache itself does not keep it open.
    const std::shared_ptr<Value> value =
        opened.ok() ? std::shared_ptr<Value>(std::move(*opened)) : nullptr;
    {
      base::MutexLock lock(mutex_);
      CacheEntry& entry = entries_[key];
      entry.opening = false;
      entry.value = value;
      changed_.notify_all();
    }
    if (value == nullptr) return opened.status();
    return value;
  }

  /// How many are open.
  std::size_t size() const LINKSPAN_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    std::size_t open = 0;
    for (const auto& [key, entry] : entries_)
      if (!entry.value.expired()) ++open;
    return open;
  }

 private:
  struct CacheEntry {
    std::weak_ptr<Value> value;
    bool opening = false;
  };

  void erase_expired() LINKSPAN_REQUIRES(mutex_) {
    std::erase_if(entries_, [](const auto& entry) {
      return !entry.second.opening && entry.second.value.expired();
    });
  }

  mutable base::Mutex mutex_;
  base::Condition changed_;
  std::map<Key, CacheEntry> entries_ LINKSPAN_GUARDED_BY(mutex_);
};

}  // namespace linkspan::memory
