// memory/import_cache.hpp - opens each peer's allocation once, however many regions it contains.
//
// A thousand tensors of a peer are in a few allocations, and each open costs milliseconds. The
// cache gives all of them one Value, which closes when its last user drops it. Off the path of a
// byte: at import.
// Threads: any thread. Opening runs without the mutex; of several threads that want the same key,
// one opens and the others wait for it, until their deadlines.
// Invariants: at most one open of a key is in progress; a Value in use is not opened again.
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

/// Identifies an allocation by the incarnation of its owner and the device that opens it.
struct ImportKey {
  std::uint64_t incarnation = 0;
  std::array<std::uint64_t, 2> allocation{};  ///< {CUDA buffer id, 0}, or a memfd's {dev, inode}.
  int device = -1;                            ///< Our ordinal; -1: the CPU.
  friend auto operator<=>(const ImportKey&, const ImportKey&) = default;  // NOLINT(*-use-nullptr)
};

/// A map of Values that live as long as their users.
template <class Key, class Value>
class ImportCache {
 public:
  using Open = std::function<Result<std::unique_ptr<Value>>()>;

  /// Returns the open Value, or the result of open(). If another thread's open() fails, ours is
  /// tried: keys may differ in what they contain, and errors are not cached. timed_out: another
  /// thread's open() outlasted the deadline; ours must bound itself. An open() that throws ends as
  /// one that fails, for the other threads.
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
    try {
      Result<std::unique_ptr<Value>> opened = open();
      // Shared by the users of the cache; the cache itself has a weak reference.
      const std::shared_ptr<Value> value =
          opened.ok() ? std::shared_ptr<Value>(std::move(*opened)) : nullptr;
      end_opening(key, value);
      if (value == nullptr) return opened.status();
      return value;
    } catch (...) {
      end_opening(key, nullptr);
      throw;
    }
  }

  /// Returns the number of open Values.
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

  void end_opening(const Key& key, const std::shared_ptr<Value>& value) LINKSPAN_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    CacheEntry& entry = entries_.find(key)->second;
    entry.opening = false;
    entry.value = value;
    changed_.notify_all();
  }

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
