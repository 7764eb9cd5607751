// transport/verbs/memory_keys.hpp - a region's registrations with the devices.
//
// On the path of a byte: each request names the local key of its memory and the peer's remote key.
// Threads: any thread; immutable after create().
// Invariants: the memory stays registered as long as the object lives.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cuda/topology.hpp"
#include "memory/region.hpp"
#include "transport/verbs/nearest.hpp"

namespace linkspan::transport::verbs {

/// Owns the registration of a range of memory with one device.
class DeviceMemory {
 public:
  DeviceMemory(std::shared_ptr<VerbsDevice> device, IbvMr* mr)
      : device_(std::move(device)), mr_(mr) {}
  DeviceMemory(DeviceMemory&& other) noexcept
      : device_(std::move(other.device_)), mr_(std::exchange(other.mr_, nullptr)) {}
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  DeviceMemory& operator=(DeviceMemory&&) = delete;
  ~DeviceMemory() {
    if (mr_ != nullptr) (void)device_->library().dereg_mr(mr_);
  }

  std::uint32_t lkey() const noexcept { return mr_->lkey; }
  std::uint32_t rkey() const noexcept { return mr_->rkey; }

 private:
  std::shared_ptr<VerbsDevice> device_;  // shared with its rails and queue pairs
  IbvMr* mr_;
};

/// Stands in a list of keys, which have 32 bits, where there is none.
inline constexpr std::uint64_t kNoKey = std::uint64_t{1} << 32;

class MemoryKeys {
 public:
  /// OFF THE LOCK. Registers the memory with each device: milliseconds for each GiB. Peers get the
  /// region's permissions. `gpu`: the GPU that has it; null: host memory. no_resource: the process
  /// may pin no more; the text says how it may. unsupported: the devices take no such memory.
  static Result<std::shared_ptr<const MemoryKeys>> create(
      std::span<const std::shared_ptr<VerbsDevice>> devices, const memory::Region::Facts& facts,
      const cuda::Device* gpu, decltype(nearness)* nearness_of = nearness);

  /// Returns false for a device that failed to register it, where another one did.
  bool has(std::size_t device) const noexcept { return all_[device].has_value(); }
  /// Returns whether no other device is nearer.
  bool is_nearest(std::size_t device) const noexcept { return near_[device] == nearest_; }
  std::uint32_t lkey(std::size_t device) const noexcept { return all_[device]->lkey(); }
  /// Returns kNoKey for a device that has none.
  std::vector<std::uint64_t> rkeys() const;

 private:
  std::vector<std::optional<DeviceMemory>> all_;  // by the devices' order
  std::vector<std::size_t> near_;                 // likewise
  std::size_t nearest_ = 0;                       // of those that have it
};

/// Describes a registration of so many bytes that failed, and how to raise the limit of memory.
std::string registration_error(const std::string& device, const char* function, int error,
                               std::uint64_t bytes);

}  // namespace linkspan::transport::verbs
