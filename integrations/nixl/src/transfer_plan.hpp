// nixl/transfer_plan.hpp - groups the descriptors of a transfer by their pair of memories, each
// pair with one shape.
//
// Path of a byte: prepXfer makes a plan once; each post submits it as one transfer.
// Threads: immutable after construction.
// Invariants: each shape lies within both memories of its pair. Less than 50 ns a descriptor.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "integrations/nixl/src/abi.hpp"
#include "linkspan/status.hpp"
#include "linkspan/types.hpp"

namespace linkspan::nixl {

/// A registered memory of either side, as the plan needs it.
struct MemoryHandle : abi::Handle {
  MemoryHandle(bool own, std::uintptr_t begin, std::uint64_t size)
      : Handle(own), address(begin), bytes(size) {}

  const std::uintptr_t address;
  const std::uint64_t bytes;
};

class TransferPlan {
 public:
  struct Pair {
    const MemoryHandle* local = nullptr;
    const MemoryHandle* remote = nullptr;
    Shape shape{};  ///< Pages where all blocks are of one size on a grid, else Blocks.
    std::uint64_t blocks = 0, bytes = 0;
  };

  /// Reads both lists, whose handles this plugin made. invalid_argument: their lengths differ, they
  /// are empty, or a descriptor has no handle or leaves its memory; the text names it.
  static Result<TransferPlan> make(std::span<const abi::DescriptorWithHandle> local,
                                   std::span<const abi::DescriptorWithHandle> remote);

  TransferPlan(TransferPlan&&) noexcept = default;
  TransferPlan& operator=(TransferPlan&&) noexcept = default;
  TransferPlan(const TransferPlan&) = delete;  // shapes borrow the lists
  TransferPlan& operator=(const TransferPlan&) = delete;
  ~TransferPlan() = default;

  const std::vector<Pair>& pairs() const noexcept { return pairs_; }
  std::uint64_t blocks() const noexcept;
  std::uint64_t bytes() const noexcept;

 private:
  TransferPlan() = default;

  std::vector<Pair> pairs_;
  std::vector<std::uint32_t> local_index_, remote_index_;
  std::vector<Block> blocks_;
};

}  // namespace linkspan::nixl
