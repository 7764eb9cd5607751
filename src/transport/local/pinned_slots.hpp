// transport/local/pinned_slots.hpp - small slots of pinned memory, for batches between a GPU of
// this process and private memory of a peer.
//
// On the path of a byte: between the two copies of such a batch. The GPU copies to or from a slot,
// the kernel between the slot and the peer's memory, and nothing wakes the peer.
// Threads: under SharedCopiers::mutex, except create().
// Invariants: nothing touches a slot that is not acquired. A slot has room for any such batch.
#pragma once

#include <bitset>
#include <cstdint>
#include <memory>
#include <utility>

#include "cuda/memory.hpp"
#include "cuda/topology.hpp"
#include "transport/local/route.hpp"

namespace linkspan::transport::local {

class PinnedSlots {
 public:
  static constexpr unsigned kSlots = 16;

  /// A slot that is released with this object, which must not outlive its PinnedSlots.
  class Acquired {
   public:
    explicit Acquired(PinnedSlots& owner, unsigned index) noexcept
        : owner_(&owner), index_(index) {}
    Acquired(Acquired&& other) noexcept
        : owner_(std::exchange(other.owner_, nullptr)), index_(other.index_) {}
    Acquired& operator=(Acquired&&) = delete;
    Acquired(const Acquired&) = delete;
    Acquired& operator=(const Acquired&) = delete;
    ~Acquired() {
      if (owner_ != nullptr) owner_->used_.reset(index_);
    }
    std::uint64_t address() const noexcept {
      return reinterpret_cast<std::uintptr_t>(owner_->memory_->data()) + index_ * kSlotBatchBytes;
    }

   private:
    PinnedSlots* owner_;
    unsigned index_;
  };

  /// OFF THE LOCK. Allocates the memory for that GPU.
  static Result<std::unique_ptr<PinnedSlots>> create(cuda::Topology& topology,
                                                     const cuda::Device& device);
  bool has_room() const noexcept { return !used_.all(); }
  Acquired acquire() noexcept;  ///< Requires has_room().

 private:
  explicit PinnedSlots(std::shared_ptr<cuda::PinnedBuffer> memory) : memory_(std::move(memory)) {}

  const std::shared_ptr<cuda::PinnedBuffer> memory_;  // the other owner frees it
  std::bitset<kSlots> used_;
};

}  // namespace linkspan::transport::local
