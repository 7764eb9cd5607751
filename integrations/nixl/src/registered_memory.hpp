// nixl/registered_memory.hpp - the memory that an agent registered, and the end of registrations.
//
// Off the path of a byte.
// Threads: any thread.
// Invariants: each registration is one Region, published under a name that is never used again.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "integrations/nixl/src/remote_agent.hpp"
#include "integrations/nixl/src/transfer_plan.hpp"
#include "linkspan/engine.hpp"

namespace linkspan::nixl {

struct LocalMemory final : MemoryHandle {
  LocalMemory(Region owned, MemoryAddress where)
      : MemoryHandle(true, where.address, where.bytes),
        region(std::move(owned)),
        published(std::move(where)) {}

  const Region region;
  const MemoryAddress published;
};

/// NIXL unloads it while transfers may still use the memory.
struct LoadedMemory final : MemoryHandle {
  LoadedMemory(std::shared_ptr<RemoteMemory> loaded, const MemoryAddress& where)
      : MemoryHandle(false, where.address, where.bytes), memory(std::move(loaded)) {}

  const std::shared_ptr<RemoteMemory> memory;  // also the requests'
};

class Registrations {
 public:
  explicit Registrations(const Services& services) : services_(services) {}

  /// Registers and publishes it. invalid_argument: no bytes, or the memory is of another kind.
  Result<std::unique_ptr<LocalMemory>> add(const abi::Descriptor& memory, abi::Memory kind);
  /// Ends the registration. NIXL's users free the memory after this call, so it waits up to 0.2 s
  /// for peers; not if an earlier one is still waited for. pending: a background task asks until it
  /// has ended; a WARNING says by whom the memory is used.
  Status end(const LocalMemory& memory);

 private:
  void end_later(const LocalMemory& memory, const Status& used);

  const Services& services_;
  std::atomic<std::uint64_t> next_name_{0};
  std::shared_ptr<std::atomic<int>> ending_ =  // also the tasks'
      std::make_shared<std::atomic<int>>(0);
};

}  // namespace linkspan::nixl
