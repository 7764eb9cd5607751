// linkspan/region.hpp - registered memory: Region of this process, RemoteRegion of a peer.
//
// Every transfer copies between a Region and a RemoteRegion.
// Threads: any thread.
// Invariants: handles may be copied and may outlive the Engine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "linkspan/status.hpp"
#include "linkspan/types.hpp"

namespace linkspan {

namespace memory {
class Registration;
}
namespace engine {
class EngineImpl;
struct HandleAccess;
struct ImportedRegion;
}  // namespace engine

struct RegionOptions {
  Permissions peers{.read = true, .write = true, .exclusive = false};
  /// Page-locks pageable host memory for the GPU: copies get faster, registration slower (19 ms for
  /// 256 MiB). Without effect on memory that is pinned already.
  bool pin = false;
};

/// Registered memory of this process. The user owns the memory, which must stay allocated until
/// Engine::deregister() or Engine::close() answered ok.
class LINKSPAN_API Region {
 public:
  Region() = default;  ///< Refers to no region.
  bool valid() const noexcept { return registration_ != nullptr; }
  std::uint64_t bytes() const noexcept;
  MemoryKind kind() const noexcept;
  void* data() const noexcept;   ///< The address; a device address if kind() is device.
  GpuUuid gpu() const noexcept;  ///< The GPU whose memory it is. Zero: none.
  std::string describe() const;

 private:
  friend struct engine::HandleAccess;
  explicit Region(std::shared_ptr<const memory::Registration> registration);

  std::shared_ptr<const memory::Registration> registration_;  // also the registry's
};

/// An imported region of a peer, from Peer::lookup(). Dropping the last handle unmaps it.
class LINKSPAN_API RemoteRegion {  // NOLINT(cppcoreguidelines-special-member-functions)
 public:
  RemoteRegion() = default;  ///< Refers to no region.
  RemoteRegion(const RemoteRegion&) = default;
  RemoteRegion(RemoteRegion&&) noexcept = default;
  /// Copies or moves, by value. The old value releases the region before the Engine.
  RemoteRegion& operator=(RemoteRegion other) noexcept {
    impl_.swap(other.impl_);
    imported_.swap(other.imported_);
    return *this;
  }
  ~RemoteRegion() = default;
  bool valid() const noexcept { return imported_ != nullptr; }
  std::uint64_t bytes() const noexcept;
  MemoryKind kind() const noexcept;
  Permissions permissions() const noexcept;
  std::string name() const;
  std::uint64_t peer() const noexcept;  ///< Peer::id() of its owner.

 private:
  friend struct engine::HandleAccess;
  RemoteRegion(std::shared_ptr<engine::EngineImpl> core,
               std::shared_ptr<engine::ImportedRegion> imported);

  std::shared_ptr<engine::EngineImpl> impl_;          // also the Engine's: owns the transports
  std::shared_ptr<engine::ImportedRegion> imported_;  // also of transfers in flight
};

/// One version of a published set: its regions in the order in which the peer published them.
struct RegionSet {
  std::uint64_t version = 0;
  std::vector<RemoteRegion> regions;
};

}  // namespace linkspan
