#include "integrations/nixl/src/transfer_plan.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <string>
#include <unordered_map>

namespace linkspan::nixl {
namespace {

using abi::DescriptorWithHandle;

/// Divides by a block's size, which mostly is a power of two.
class Divider {
 public:
  explicit Divider(std::uint64_t by)
      : by_(by), shift_(std::has_single_bit(by) ? std::countr_zero(by) : -1) {}
  std::uint64_t divide(std::uint64_t number) const noexcept {
    return shift_ >= 0 ? number >> shift_ : number / by_;
  }

 private:
  std::uint64_t by_;
  int shift_;
};

/// Collects the facts of a pair while make() reads the lists.
struct PairFacts {
  std::uint64_t bytes;  // of each block, while all are equal
  Divider divider;
  std::uint64_t local_base, remote_base;  // offsets of the grid
  bool is_grid = true;
  std::size_t first;  // place of its blocks

  PairFacts(std::uint64_t size, std::uint64_t local, std::uint64_t remote, std::size_t place)
      : bytes(size),
        divider(size),
        local_base(local % size),
        remote_base(remote % size),
        first(place) {}

  /// Returns the index on the grid, and clears `is_grid` if there is none.
  std::uint32_t index_of(std::uint64_t offset, std::uint64_t base) noexcept {
    const std::uint64_t index = divider.divide(offset - base);
    is_grid = is_grid && offset >= base && index <= std::numeric_limits<std::uint32_t>::max() &&
              index * bytes == offset - base;
    return static_cast<std::uint32_t>(index);
  }
};

/// Numbers the pairs of memories in the order of their first block.
class PairNumbers {
 public:
  /// Returns the pair's number; `next` if it is new.
  std::uint32_t find(const MemoryHandle* local, const MemoryHandle* remote, std::uint32_t next) {
    return numbers_.try_emplace(Key{local, remote}, next).first->second;
  }

 private:
  struct Key {
    const MemoryHandle *local, *remote;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const noexcept {
      const auto one = reinterpret_cast<std::uintptr_t>(key.local) >> 4;
      const auto other = reinterpret_cast<std::uintptr_t>(key.remote) >> 4;
      return one * 0x9e3779b97f4a7c15u ^ other;
    }
  };

  std::unordered_map<Key, std::uint32_t, Hash> numbers_;
};

Status refused(std::size_t index, const std::string& what) {
  return {Code::invalid_argument, Scope::request, "descriptor " + std::to_string(index) + what};
}

/// Returns whether the range lies in the memory. An offset below it is a huge one.
bool is_within(const MemoryHandle& memory, std::uint64_t offset, std::uint64_t bytes) noexcept {
  return offset <= memory.bytes && bytes <= memory.bytes - offset;
}

Status leaves(const DescriptorWithHandle& descriptor, const MemoryHandle& memory, std::size_t index,
              const char* side) {
  return refused(index,
                 " of the " + std::string(side) + " list, " + std::to_string(descriptor.bytes) +
                     " bytes at address " + std::to_string(descriptor.address) +
                     ", leaves its memory of " + std::to_string(memory.bytes) + " bytes at " +
                     std::to_string(memory.address) + ": register all of it as one descriptor");
}

/// Returns where the first block of each pair goes.
std::vector<std::size_t> places_of(std::span<const PairFacts> facts) {
  std::vector<std::size_t> places;
  places.reserve(facts.size());
  for (const PairFacts& fact : facts) places.push_back(fact.first);
  return places;
}

/// Returns the values in the order of the pairs' places, of which each takes its next one.
std::vector<std::uint32_t> in_places(const std::vector<std::uint32_t>& values,
                                     const std::vector<std::uint32_t>& pair_of,
                                     std::span<const PairFacts> facts) {
  std::vector<std::size_t> next = places_of(facts);
  std::vector<std::uint32_t> out(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) out[next[pair_of[i]]++] = values[i];
  return out;
}

}  // namespace

Result<TransferPlan> TransferPlan::make(std::span<const DescriptorWithHandle> local,
                                        std::span<const DescriptorWithHandle> remote) {
  if (local.size() != remote.size() || local.empty())
    return Status(Code::invalid_argument, Scope::request,
                  "a transfer of " + std::to_string(local.size()) + " local and " +
                      std::to_string(remote.size()) +
                      " remote descriptors: both lists need the same number, at least one");
  TransferPlan out;
  out.local_index_.resize(local.size());
  out.remote_index_.resize(local.size());
  std::vector<PairFacts> facts;
  std::vector<std::uint32_t> pair_of(local.size());
  PairNumbers numbers;
  const MemoryHandle *here = nullptr, *there = nullptr;
  std::uint32_t number = 0;
  bool in_order = true;  // the blocks of each pair follow each other
  for (std::size_t i = 0; i < local.size(); ++i) {
    if (local[i].handle == nullptr || remote[i].handle == nullptr)
      return refused(i, " has no registered memory");
    const bool same = local[i].handle == here && remote[i].handle == there;
    here = static_cast<const MemoryHandle*>(local[i].handle);
    there = static_cast<const MemoryHandle*>(remote[i].handle);
    const std::uint64_t bytes = local[i].bytes;
    if (bytes != remote[i].bytes)
      return refused(i, " has " + std::to_string(bytes) + " bytes here and " +
                            std::to_string(remote[i].bytes) + " there: they must be equal");
    if (bytes == 0) return refused(i, " has 0 bytes: leave it out");
    const std::uint64_t local_offset = local[i].address - here->address;
    const std::uint64_t remote_offset = remote[i].address - there->address;
    if (!is_within(*here, local_offset, bytes)) return leaves(local[i], *here, i, "local");
    if (!is_within(*there, remote_offset, bytes)) return leaves(remote[i], *there, i, "remote");
    if (!same) {
      const auto next = static_cast<std::uint32_t>(out.pairs_.size());
      number = numbers.find(here, there, next);
      in_order = in_order && number == next;
      if (number == next) {
        out.pairs_.push_back({here, there});
        facts.emplace_back(bytes, local_offset, remote_offset, i);
      }
    }
    pair_of[i] = number;
    TransferPlan::Pair& pair = out.pairs_[number];
    ++pair.blocks;
    pair.bytes += bytes;
    PairFacts& fact = facts[number];
    fact.is_grid = fact.is_grid && bytes == fact.bytes;
    out.local_index_[i] = fact.index_of(local_offset, fact.local_base);
    out.remote_index_[i] = fact.index_of(remote_offset, fact.remote_base);
  }

  if (!in_order) {
    std::size_t place = 0;
    for (std::size_t i = 0; i < facts.size(); ++i) {
      facts[i].first = place;
      place += out.pairs_[i].blocks;
    }
    out.local_index_ = in_places(out.local_index_, pair_of, facts);
    out.remote_index_ = in_places(out.remote_index_, pair_of, facts);
  }
  if (!std::ranges::all_of(facts, &PairFacts::is_grid)) {
    out.blocks_.resize(local.size());
    std::vector<std::size_t> next = places_of(facts);
    for (std::size_t i = 0; i < local.size(); ++i) {
      const TransferPlan::Pair& pair = out.pairs_[pair_of[i]];
      out.blocks_[next[pair_of[i]]++] = {local[i].address - pair.local->address,
                                         remote[i].address - pair.remote->address, local[i].bytes};
    }
  }
  for (std::size_t i = 0; i < facts.size(); ++i) {
    const PairFacts& fact = facts[i];
    TransferPlan::Pair& pair = out.pairs_[i];
    if (fact.is_grid)
      pair.shape = Pages{.page_bytes = fact.bytes,
                         .local_base = fact.local_base,
                         .remote_base = fact.remote_base,
                         .local_index = {out.local_index_.data() + fact.first, pair.blocks},
                         .remote_index = {out.remote_index_.data() + fact.first, pair.blocks}};
    else
      pair.shape = std::span<const Block>(out.blocks_.data() + fact.first, pair.blocks);
  }
  return out;
}

std::uint64_t TransferPlan::blocks() const noexcept {
  std::uint64_t sum = 0;
  for (const Pair& pair : pairs_) sum += pair.blocks;
  return sum;
}

std::uint64_t TransferPlan::bytes() const noexcept {
  std::uint64_t sum = 0;
  for (const Pair& pair : pairs_) sum += pair.bytes;
  return sum;
}

}  // namespace linkspan::nixl
