#include "integrations/nixl/src/transfer_plan.hpp"

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
  std::size_t first = 0;  // place of its blocks

  PairFacts(std::uint64_t size, std::uint64_t local, std::uint64_t remote)
      : bytes(size), divider(size), local_base(local % size), remote_base(remote % size) {}

  bool is_on_grid(std::uint64_t offset, std::uint64_t base) const noexcept {
    if (offset < base) return false;
    const std::uint64_t index = divider.divide(offset - base);
    return index <= std::numeric_limits<std::uint32_t>::max() && index * bytes == offset - base;
  }
};

/// Numbers the pairs of memories in the order of their first block.
class PairNumbers {
 public:
  /// Returns the pair's number; `next` if it is new.
  std::uint32_t find(const MemoryHandle* local, const MemoryHandle* remote, std::uint32_t next) {
    if (local == local_ && remote == remote_) return number_;
    local_ = local;
    remote_ = remote;
    return number_ = numbers_.try_emplace(Key{local, remote}, next).first->second;
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
  const MemoryHandle* local_ = nullptr;
  const MemoryHandle* remote_ = nullptr;
  std::uint32_t number_ = 0;
};

Status refused(std::size_t index, const std::string& what) {
  return {Code::invalid_argument, Scope::request, "descriptor " + std::to_string(index) + what};
}

Status check_range(const DescriptorWithHandle& descriptor, const MemoryHandle& memory,
                   std::size_t index, const char* side) {
  const std::uint64_t offset = descriptor.address - memory.address;
  if (descriptor.address >= memory.address && offset <= memory.bytes &&
      descriptor.bytes <= memory.bytes - offset)
    return {};
  return refused(index,
                 " of the " + std::string(side) + " list, " + std::to_string(descriptor.bytes) +
                     " bytes at address " + std::to_string(descriptor.address) +
                     ", leaves its memory of " + std::to_string(memory.bytes) + " bytes at " +
                     std::to_string(memory.address) + ": register all of it as one descriptor");
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
  std::vector<PairFacts> facts;
  std::vector<std::uint32_t> pair_of(local.size());
  PairNumbers numbers;
  for (std::size_t i = 0; i < local.size(); ++i) {
    const auto* here = static_cast<const MemoryHandle*>(local[i].handle);
    const auto* there = static_cast<const MemoryHandle*>(remote[i].handle);
    if (here == nullptr || there == nullptr) return refused(i, " has no registered memory");
    const std::uint64_t bytes = local[i].bytes;
    if (bytes != remote[i].bytes)
      return refused(i, " has " + std::to_string(bytes) + " bytes here and " +
                            std::to_string(remote[i].bytes) + " there: they must be equal");
    if (bytes == 0) return refused(i, " has 0 bytes: leave it out");
    if (Status in = check_range(local[i], *here, i, "local"); !in.ok()) return in;
    if (Status in = check_range(remote[i], *there, i, "remote"); !in.ok()) return in;
    const std::uint64_t local_offset = local[i].address - here->address;
    const std::uint64_t remote_offset = remote[i].address - there->address;
    const auto next = static_cast<std::uint32_t>(out.pairs_.size());
    const std::uint32_t number = numbers.find(here, there, next);
    if (number == next) {
      out.pairs_.push_back({here, there});
      facts.emplace_back(bytes, local_offset, remote_offset);
    }
    pair_of[i] = number;
    TransferPlan::Pair& pair = out.pairs_[number];
    ++pair.blocks;
    pair.bytes += bytes;
    PairFacts& fact = facts[number];
    fact.is_grid = fact.is_grid && bytes == fact.bytes &&
                   fact.is_on_grid(local_offset, fact.local_base) &&
                   fact.is_on_grid(remote_offset, fact.remote_base);
  }

  std::size_t pages = 0, blocks = 0;
  for (std::size_t i = 0; i < facts.size(); ++i) {
    std::size_t& place = facts[i].is_grid ? pages : blocks;
    facts[i].first = place;
    place += out.pairs_[i].blocks;
  }
  out.local_index_.resize(pages);
  out.remote_index_.resize(pages);
  out.blocks_.resize(blocks);
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
  for (std::size_t i = 0; i < local.size(); ++i) {
    PairFacts& fact = facts[pair_of[i]];
    const TransferPlan::Pair& pair = out.pairs_[pair_of[i]];
    const std::uint64_t here = local[i].address - pair.local->address;
    const std::uint64_t there = remote[i].address - pair.remote->address;
    const std::size_t place = fact.first++;
    if (fact.is_grid) {
      out.local_index_[place] =
          static_cast<std::uint32_t>(fact.divider.divide(here - fact.local_base));
      out.remote_index_[place] =
          static_cast<std::uint32_t>(fact.divider.divide(there - fact.remote_base));
    } else {
      out.blocks_[place] = {here, there, local[i].bytes};
    }
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
