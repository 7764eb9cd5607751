// tests/support/nccl_net_plugin/bounce_pool.hpp - where the UNPACK device type puts what has come:
// fragments in memory of the GPU, and the lists that say where they belong.
//
// A message's bytes are cut into fragments of about a page less its headers, at random places of
// its slot's part of the pool; its list, in random order, is in mapped host memory when it is done.
// Threads: externally synchronised.
// Invariants: a slot is landed in when it is free, and freed by clear().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tests/support/nccl_net_plugin/abi.hpp"
#include "tests/support/nccl_net_plugin/gpu.hpp"
#include "tests/support/nccl_net_plugin/settings.hpp"

namespace linkspan::nccl_test {

class BouncePool {
 public:
  static Result<std::unique_ptr<BouncePool>> create(Gpu& gpu);

  /// Returns the handle for accept(), which is valid as long as this object.
  NetDeviceHandle* handle() noexcept { return &handle_; }

  /// Begins to bring `message` into the slot's fragments; the number for Gpu::passed().
  Result<std::uint64_t> land(std::size_t slot, std::span<const std::byte> message,
                             std::size_t fragment, Random& random);
  /// Damages the list of a slot that landed.
  void damage(std::size_t slot, ListFault fault);
  /// Shows the kernels the slot's list, after passed(). The list of a slot without data is empty.
  void publish(std::size_t slot);
  /// Frees the slot and spoils what was in it.
  Status clear(std::size_t slot);

 private:
  struct Slot {
    std::vector<UnpackEntry> list;
    std::size_t used = 0;  // bytes of its part of the pool
    Staging image;         // of that part
  };
  static constexpr std::size_t kCell = 4096, kSlotBytes = kCell * kUnpackFragments;
  static constexpr std::size_t kPoolBytes = kSlotBytes * kUnpackSlots;

  BouncePool(Gpu& gpu, Block pool, Block kernels, Block lists)
      : gpu_(gpu), pool_(std::move(pool)), kernels_(std::move(kernels)), lists_(std::move(lists)) {}
  UnpackMeta& meta() const { return *reinterpret_cast<UnpackMeta*>(lists_.data()); }

  Gpu& gpu_;
  Block pool_, kernels_;
  Block lists_;
  NetDeviceHandle handle_{};
  std::array<Slot, kUnpackSlots> slots_;
};

}  // namespace linkspan::nccl_test
