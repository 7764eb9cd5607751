// memory/host_backing.hpp - a range of host memory that linkspan allocated or pinned.
//
// Shared memory is a memfd and our mapping of it; pinned memory is the user's. Several
// registrations may share one backing; the last of them unpins and unmaps. Off the path of a byte.
// Threads: any thread.
// Invariants: a memfd's size never changes (it is sealed); the pin ends before the mapping does.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/fd.hpp"
#include "base/mutex.hpp"
#include "cuda/memory.hpp"
#include "linkspan/status.hpp"

namespace linkspan::cuda {
class Device;
}

namespace linkspan::memory {

class HostBacking {
 public:
  /// Makes a memfd of at least `bytes` bytes and maps it: zeroed, no page present yet.
  static Result<std::unique_ptr<HostBacking>> make_shared_memory(std::uint64_t bytes);
  /// Makes a backing of memory of the user, for pin().
  static std::shared_ptr<HostBacking> of_user(void* data, std::uint64_t bytes);

  HostBacking(base::Fd memfd, void* data, std::uint64_t bytes)
      : memfd_(memfd.valid() ? std::make_shared<const base::Fd>(std::move(memfd)) : nullptr),
        data_(data),
        bytes_(bytes) {}
  HostBacking(const HostBacking&) = delete;
  HostBacking& operator=(const HostBacking&) = delete;
  ~HostBacking();

  std::uint64_t address() const noexcept { return reinterpret_cast<std::uintptr_t>(data_); }
  std::uint64_t bytes() const noexcept { return bytes_; }
  bool shared() const noexcept { return memfd_ != nullptr; }
  const std::shared_ptr<const base::Fd>& memfd() const noexcept { return memfd_; }

  /// Pins the memory for all GPUs, through the context of one. A second call has no effect. Takes
  /// milliseconds.
  Status pin(const cuda::Device& device) LINKSPAN_EXCLUDES(pinning_);
  bool pinned() const noexcept { return pinned_.load(); }

 private:
  const std::shared_ptr<const base::Fd> memfd_;  // shared with regions and keys; null: user's
  void* const data_;
  const std::uint64_t bytes_;
  base::Mutex pinning_;
  std::optional<cuda::HostRegistration> pin_ LINKSPAN_GUARDED_BY(pinning_);
  std::atomic<bool> pinned_{false};
};

}  // namespace linkspan::memory
