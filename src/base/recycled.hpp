// base/recycled.hpp - std::make_shared for objects that come and go on the path of a byte.
//
// On the path of a byte: each transfer is one. Up to kKept blocks of a type that have ended are
// kept for those to come, so that a few in flight allocate nothing.
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
    for (std::atomic<void*>& slot : slots)
      if (slot.load(std::memory_order_relaxed) != nullptr)
        if (void* const kept = slot.exchange(nullptr, std::memory_order_acquire))
          return static_cast<T*>(kept);
    return static_cast<T*>(::operator new(count * sizeof(T)));
  }
  void deallocate(T* ended, std::size_t) noexcept {
    for (std::atomic<void*>& slot : slots) {
      void* empty = nullptr;
      if (slot.compare_exchange_strong(empty, ended, std::memory_order_release,
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

template <class T>
std::shared_ptr<T> make_recycled() {
  return std::allocate_shared<T>(RecyclingAllocator<T>());
}

}  // namespace linkspan::base
