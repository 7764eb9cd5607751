// base/handle_table.hpp - a table of values by numbers that users and peers get instead of
// pointers.
//
// An id is the index of a cell and the generation of that cell. A cell is reused, a generation is
// not, so an id that is stale, forged or of another table is not found. A look-up is an index and a
// compare: fit for the path of a byte.
// Threads: externally synchronised.
// Invariants: no id is 0 or given out twice; a value keeps its address until extract().
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
      index = static_cast<std::uint32_t>(cells_.size());
      cells_.emplace_back();
      if (free_.capacity() < cells_.size()) free_.reserve(2 * cells_.size());
    } else {
      index = free_.back();
      free_.pop_back();
    }
    HandleCell& cell = cells_[index];
    cell.value.emplace(std::move(value));
    ++size_;
    return id_of(index, cell.generation);
  }

  /// Returns null if the id is unknown or stale.
  T* find(std::uint64_t id) noexcept {
    HandleCell* cell = cell_of(id);
    return cell == nullptr ? nullptr : &*cell->value;
  }
  const T* find(std::uint64_t id) const noexcept {
    return const_cast<HandleTable*>(this)->find(id);  // NOLINT: find() changes nothing
  }

  /// Moves the value out. The id is stale from now on. Allocates nothing.
  std::optional<T> extract(std::uint64_t id) {
    HandleCell* cell = cell_of(id);
    if (cell == nullptr) return std::nullopt;
    std::optional<T> extracted(std::move(cell->value));
    cell->value.reset();
    --size_;
    // A cell whose generations are used up stays empty.
    if (++cell->generation != 0) free_.push_back(static_cast<std::uint32_t>(id));
    return extracted;
  }

  std::size_t size() const noexcept { return size_; }

  /// Calls f(id, T&) for each value. f may extract() the one that it is called with; it is
  /// unspecified whether f sees values that it inserts.
  template <class F>
  void for_each(F&& f) {
    for (std::uint32_t index = 0; index < cells_.size(); ++index) {
      HandleCell& cell = cells_[index];
      if (cell.value) f(id_of(index, cell.generation), *cell.value);
    }
  }

 private:
  struct HandleCell {
    std::uint32_t generation = 1;  // 0: used up
    std::optional<T> value;
  };

  static std::uint64_t id_of(std::uint32_t index, std::uint32_t generation) noexcept {
    return std::uint64_t{generation} << 32 | index;
  }
  HandleCell* cell_of(std::uint64_t id) noexcept {
    const auto index = static_cast<std::uint32_t>(id);
    if (index >= cells_.size()) return nullptr;
    HandleCell& cell = cells_[index];
    return cell.value && cell.generation == id >> 32 ? &cell : nullptr;
  }

  std::deque<HandleCell> cells_;  // not a vector: that would move the values
  std::vector<std::uint32_t> free_;
  std::size_t size_ = 0;
};

}  // namespace linkspan::base
