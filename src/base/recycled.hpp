// base/recycled.hpp - memory of objects that come and go on the path of a byte.
//
// On the path of a byte: transfers, batches in flight and their entries in lists. Up to kKept
// objects of a type that have ended leave their memory for those to come, so that a few in flight
// allocate nothing.
// Threads: any thread; takes no lock.
// Invariants: a kept block is in one slot, or is somebody's.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <new>

namespace linkspan::base {

template <class T>
class RecyclingAllocator {
 public:
  using value_type = T;

  RecyclingAllocator() = default;
  template <class U>
  explicit RecyclingAllocator(const RecyclingAllocator<U>&) noexcept {}

  T* allocate(std::size_t count) {
    if (count == 1)  // a slot has room for one
      for (std::atomic<void*>& slot : slots)
        if (slot.load(std::memory_order_relaxed) != nullptr)
          if (void* const kept = slot.exchange(nullptr, std::memory_order_acquire))
            return static_cast<T*>(kept);
    return static_cast<T*>(::operator new(count * sizeof(T)));
  }
  void deallocate(T* ended, std::size_t count) noexcept {
    for (std::atomic<void*>& slot : slots) {
      void* empty = nullptr;
      if (count == 1 && slot.compare_exchange_strong(empty, ended, std::memory_order_release,
                                                     std::memory_order_relaxed))
        return;
    }
    ::operator delete(ended);
  }
  friend bool operator==(const RecyclingAllocator&, const RecyclingAllocator&) { return true; }

 private:
  static constexpr std::size_t kKept = 16;
  static_assert(alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);

  inline static constinit std::array<std::atomic<void*>, kKept> slots{};
};

/// Returns a new object in memory of RecyclingAllocator.
template <class T>
std::shared_ptr<T> make_recycled() {
  return std::allocate_shared<T>(RecyclingAllocator<T>());
}

}  // namespace linkspan::base
