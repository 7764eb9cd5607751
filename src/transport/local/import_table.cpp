#include "transport/local/import_table.hpp"

#include <algorithm>

namespace linkspan::transport::local {

std::uint64_t ImportTable::add(const memory::RegionId& id, ImportBudget::Share share) {
  const std::uint64_t number = ++last_;
  numbers_[{id.incarnation, id.serial}].insert(number);
  try {
    ImportEntry& import = imports_[number];
    import.id = id;
    import.share = std::move(share);
  } catch (...) {
    numbers_[{id.incarnation, id.serial}].erase(number);
    throw;
  }
  return number;
}

memory::RegionId ImportTable::remove(std::uint64_t number) {
  const auto entry = imports_.find(number);
  const memory::RegionId id = entry->second.id;
  const auto numbers = numbers_.find({id.incarnation, id.serial});
  numbers->second.erase(number);
  if (numbers->second.empty()) numbers_.erase(numbers);
  imports_.erase(entry);
  return id;
}

bool ImportTable::maps(const memory::RegionId& id) const {
  const auto numbers = numbers_.find({id.incarnation, id.serial});
  return numbers != numbers_.end() &&
         std::ranges::any_of(numbers->second,
                             [this](std::uint64_t number) { return !imports_.at(number).closed; });
}

ImportTable::Imports ImportTable::opened() const {
  Imports all;
  for (const auto& [number, import] : imports_)
    if (auto memory = import.opening ? nullptr : import.memory.lock())
      all.push_back(std::move(memory));
  return all;
}

bool ImportTable::unmap(const memory::RegionId& id, Imports& used, std::vector<Unmapped>& ended) {
  bool all = true;
  const auto numbers = numbers_.find({id.incarnation, id.serial});
  if (numbers == numbers_.end()) return true;
  used.reserve(numbers->second.size());  // what may throw comes first
  ended.reserve(numbers->second.size());
  for (const std::uint64_t number : numbers->second) {
    ImportEntry& import = imports_[number];
    if (import.unmapping) continue;
    all &= !import.opening;
    if (import.opening) continue;
    used.push_back(import.memory.lock());
    const auto& memory = used.back();
    if (memory == nullptr || memory->host() != nullptr) continue;
    // Two owners are the user's Mapping and `used`; a batch would be a third. No batch begins on a
    // region that is not alive.
    if (memory.use_count() > 2) {
      all = false;
      continue;
    }
    ended.push_back({number, memory->unmap()});
    import.unmapping = true;
  }
  return all;
}

std::optional<memory::RegionId> ImportTable::set_closed(std::uint64_t number) {
  const auto import = imports_.find(number);
  if (import == imports_.end()) return std::nullopt;
  import->second.closed = true;
  return import->second.id;
}

}  // namespace linkspan::transport::local
