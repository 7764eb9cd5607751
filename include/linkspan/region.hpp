// linkspan/region.hpp - registered memory: ours, and a peer's as we see it.
//
// Threads: any thread. Handles may be copied and may outlive the Engine.
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
struct ImportedRegion;
}  // namespace engine

struct RegionOptions {
  Permissions peers{.read = true, .write = true, .exclusive = false};
  /// Lock pageable host memory for the GPU: copies get faster, registration slower (19 ms for
  /// 256 MiB). What the user has pinned already needs it not.
  bool pin = false;
};

/// Memory of this process that was registered. The memory itself stays the user's and must live
/// until Engine::deregister() answered ok, or the Engine was closed.
class LINKSPAN_API Region {
 public:
  Region() = default;  ///< None.
  bool valid() const noexcept { return registration_ != nullptr; }
  std::uint64_t bytes() const noexcept;
  MemoryKind kind() const noexcept;
  void* data() const noexcept;   ///< The address; of a GPU when kind() is device.
  GpuUuid gpu() const noexcept;  ///< The one that holds it. Zero: none.
  std::string describe() const;

 private:
  friend class engine::EngineImpl;
  explicit Region(std::shared_ptr<const memory::Registration> registration);

  std::shared_ptr<const memory::Registration> registration_;  // also the registry's
};

/// A peer's region, imported: what transfers name. Dropping the last handle unmaps it.
class LINKSPAN_API RemoteRegion {  // NOLINT(cppcoreguidelines-special-member-functions)
 public:
  RemoteRegion() = default;  ///< None.
  RemoteRegion(const RemoteRegion&) = default;
  RemoteRegion(RemoteRegion&&) noexcept = default;
  /// By value, for both kinds. The old one lets go of the region before the Engine.
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
  friend class engine::EngineImpl;
  RemoteRegion(std::shared_ptr<engine::EngineImpl> core,
               std::shared_ptr<engine::ImportedRegion> imported);

  std::shared_ptr<engine::EngineImpl> impl_;          // also the Engine's: owns the transports
  std::shared_ptr<engine::ImportedRegion> imported_;  // also of transfers in flight
};

/// What a name of a peer's stood for at one time: all regions of one version, in the order in which
/// they were published.
struct RegionSet {
  std::uint64_t version = 0;
  std::vector<RemoteRegion> regions;
};

}  // namespace linkspan
