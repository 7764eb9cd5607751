// base/handle_table.hpp - numbers for things: given to users and peers instead of pointers.
//
// An id names a slot and that slot's generation. A slot is used again, its generation is not, so
// an id that is stale, made up or another table's is not found. Lookup is an index and a compare:
// fit for the path of a byte.
// Threads: externally synchronised.
// Invariants: no id is 0, none is given out twice; a T stays at its address until it is taken.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

namespace linkspan::base {

template <class T>
class HandleTable {
 public:
  std::uint64_t insert(T value) {
    std::uint32_t index = 0;
    if (free_.empty()) {
      index = static_cast<std::uint32_t>(slots_.size());
      slots_.emplace_back();
    } else {
      index = free_.back();
      free_.pop_back();
    }
    Slot& slot = slots_[index];
    slot.value.emplace(std::move(value));
    ++size_;
    return id_of(index, slot.generation);
  }

  /// Null: no such id, or not any more.
  T* find(std::uint64_t id) noexcept {
    Slot* slot = slot_of(id);
    return slot == nullptr ? nullptr : &*slot->value;
  }
  const T* find(std::uint64_t id) const noexcept {
    return const_cast<HandleTable*>(this)->find(id);  // NOLINT: find() changes nothing
  }

  /// Moves it out; the id is stale from now on.
  std::optional<T> take(std::uint64_t id) {
    Slot* slot = slot_of(id);
    if (slot == nullptr) return std::nullopt;
    std::optional<T> taken(std::move(slot->value));
    slot->value.reset();
    --size_;
    // A slot whose generations are used up stays empty for ever.
    if (++slot->generation != 0) free_.push_back(static_cast<std::uint32_t>(id));
    return taken;
  }

  std::size_t size() const noexcept { return size_; }

  /// f(id, T&) for each. f may take() the one it is given; whether it meets one that it
  /// inserts is open.
  template <class F>
  void for_each(F&& f) {
    for (std::uint32_t index = 0; index < slots_.size(); ++index) {
      Slot& slot = slots_[index];
      if (slot.value) f(id_of(index, slot.generation), *slot.value);
    }
  }

 private:
  struct Slot {
    std::uint32_t generation = 1;  // 0: used up
    std::optional<T> value;
  };

  static std::uint64_t id_of(std::uint32_t index, std::uint32_t generation) noexcept {
    return std::uint64_t{generation} << 32 | index;
  }
  Slot* slot_of(std::uint64_t id) noexcept {
    const auto index = static_cast<std::uint32_t>(id);
    if (index >= slots_.size()) return nullptr;
    Slot& slot = slots_[index];
    return slot.value && slot.generation == id >> 32 ? &slot : nullptr;
  }

  std::deque<Slot> slots_;  // not a vector: that would move the values
  std::vector<std::uint32_t> free_;
  std::size_t size_ = 0;
};

}  // namespace linkspan::base
