// memory/registry.hpp - the registrations of one Engine: which memory the user has lent us.
//
// Registration is where a pointer's facts are asked for, checked and kept, and where host memory is
// pinned, so that the path of a byte needs no question: it finds a Registration and reads.
// Threads: any thread. add(), allocate_shared() and pin_shared() may take milliseconds in the
// driver, without the mutex.
// Invariants: a Registration in the table is not retired, one that was published out is never used
// again; no two have the same id; a Registration has the name of the one set that it is in, and a
// set is whole or removed; what a peer can map with a region holds no exclusive one.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "linkspan/status.hpp"
#include "linkspan/types.hpp"
#include "memory/descriptor.hpp"
#include "memory/region.hpp"

namespace linkspan::cuda {
class Device;
class Topology;
}  // namespace linkspan::cuda

namespace linkspan::memory {

/// Host memory that linkspan made (a memfd) or pinned; several registrations may lie in it.
class HostBacking;

/// One registered Region and what has to stay alive for it.
/// Threads: immutable after construction, but for its count of users, which is atomic.
class Registration {
 public:
  Registration(std::unique_ptr<const Region> region, std::shared_ptr<HostBacking> backing)
      : region_(std::move(region)), backing_(std::move(backing)) {}

  const Region& region() const noexcept { return *region_; }
  const RegionId& id() const noexcept { return region_->facts().id; }
  /// The driver has its pages locked: a GPU may copy without staging. `shared` memory becomes it
  /// by pin_shared(). True for GPU memory.
  bool pinned() const noexcept;

  /// The user's memory, and its end unpins it.
  bool unpins() const noexcept;

  /// For each transfer in flight that borrows the Region. False: it has been removed, do not
  /// touch it.
  [[nodiscard]] bool acquire() const noexcept;
  void release() const noexcept;
  std::uint32_t users() const noexcept { return users_.load() & ~kRetired; }

 private:
  friend class Registry;
  static constexpr std::uint32_t kRetired = 1u << 31;
  bool retire() const noexcept;  // false: in use

  std::unique_ptr<const Region> region_;
  std::shared_ptr<HostBacking> backing_;  // other registrations inside it; null: the user's
  mutable std::atomic<std::uint32_t> users_{0};
};

class Registry {
 public:
  /// `topology` outlives the Registry and all of its Registrations; null: no GPU here.
  Registry(std::uint64_t incarnation, cuda::Topology* topology);
  ~Registry();
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  /// Registers memory of the user's, which stays where it is until remove(). `pin` locks host
  /// memory for the driver, which makes copies to a GPU faster and registration slower; it brings
  /// up the first GPU if none is up. A range of chunks that cuMemMap insert_set in a row counts as
  /// one allocation. invalid_argument: no memory, or not within one allocation. unsupported:
  /// managed memory; pin without a GPU.
  Result<std::shared_ptr<const Registration>> add(void* pointer, std::uint64_t bytes,
                                                  Permissions peers, bool pin);
  /// Private host memory for one message, of which the caller knows whether it is pinned. No driver
  /// call. invalid_argument: not all mapped.
  Result<std::shared_ptr<const Registration>> add_private(std::uint64_t address,
                                                          std::uint64_t bytes, MemoryKind kind,
                                                          Permissions peers);
  /// Registers a part of a region for one message that goes by a wire. The region outlives it; no
  /// driver call. invalid_argument: it leaves the region.
  Result<std::shared_ptr<const Registration>> add_part(const Registration& whole,
                                                       std::uint64_t offset, std::uint64_t bytes,
                                                       Permissions peers);
  /// Zeroed memory that every local peer can map, with a descriptor of its own. Pinned when a GPU
  /// is up.
  Result<std::shared_ptr<const Registration>> allocate_shared(std::uint64_t bytes,
                                                              Permissions peers);
  /// Pins all shared memory that is not pinned yet. For whoever has just brought up a GPU; OK and
  /// without effect when none is up.
  Status pin_shared();

  /// Null: there is none, or none any more.
  std::shared_ptr<const Registration> find(const RegionId& id) const;
  /// Shared memory around these bytes that peers may map, read and write. Null: there is none.
  std::shared_ptr<const Registration> find_shared(std::uint64_t address, std::uint64_t bytes) const;
  /// Whether any byte of these, or of the allocation that a peer would map with them, is registered
  /// as exclusive. `buffer`: CUDA's id of GPU memory, else 0.
  bool any_exclusive(std::uint64_t address, std::uint64_t bytes, std::uint64_t buffer) const;
  std::vector<std::shared_ptr<const Registration>> all() const;
  /// For people: values only, for who holds a Registration holds its pin.
  struct RegionSummary {
    Region::Facts facts;
    std::string name;
    bool pinned = false;
    std::uint32_t users = 0;
  };
  /// The first `most`, and how many there are.
  std::pair<std::vector<RegionSummary>, std::size_t> list(std::size_t most) const;

  // registry_names.cpp
  /// Under which peers look it up; replaces an older name, and an empty one takes back the one that
  /// it has, with the whole set. invalid_argument: published by others, one of a set, or too long.
  Status set_name(const RegionId& id, std::string_view name);
  /// All at once in the place of what the name stood for. Its version: it grows with whatever is
  /// published here. invalid_argument: no regions or too many, a bad name, one of another set.
  /// not_found: one is not registered. Then nothing has changed.
  Result<std::uint64_t> publish(std::string_view name, std::span<const RegionId> ids);
  /// Empty: it has none.
  std::string name(const RegionId& id) const;
  /// What the name stands for now. None: nothing.
  std::optional<PublishedSet> find_set(std::string_view name) const;
  /// The one of its set, or the one region that the name stands for (serial 0). not_found: neither.
  /// invalid_argument: it stands for several.
  Result<std::shared_ptr<const Registration>> find_name(std::string_view name,
                                                        std::uint64_t serial = 0) const;

  /// After every transport has retracted it. busy: transfers still borrow it. From then on
  /// acquire() fails; the pin and linkspan's own memory end with the last who holds the
  /// Registration, so a user's memory should not be freed before.
  Status remove(const RegionId& id);

 private:
  struct RegistryEntry {
    std::shared_ptr<const Registration> registration;  // also of those who found it
    std::string name;
  };

  Result<std::shared_ptr<const Registration>> insert(Region::Facts facts,
                                                     std::shared_ptr<HostBacking> backing);
  /// Of a registration in the table, around `address`; null: none.
  std::shared_ptr<HostBacking> backing_of(std::uint64_t address) const;
  Result<const cuda::Device*> device_to_pin(bool bring_up) const;
  const RegistryEntry* entry_of(const RegionId& id) const LINKSPAN_REQUIRES(mutex_);
  Status may_leave(const RegistryEntry& entry, std::string_view name) const
      LINKSPAN_REQUIRES(mutex_);
  std::uint64_t insert_set(std::string_view name, std::vector<std::uint64_t> serials)
      LINKSPAN_REQUIRES(mutex_);
  void unpublish(std::string_view name) LINKSPAN_REQUIRES(mutex_);
  /// A registration that a peer reaches with these bytes, or reaches them with, and that is
  /// exclusive or is not; null: none.
  const Registration* find_overlapping(const Region::Facts& facts, bool exclusive) const
      LINKSPAN_REQUIRES(mutex_);

  const std::uint64_t incarnation_;
  cuda::Topology* const topology_;

  mutable base::Mutex mutex_;
  std::uint64_t last_serial_ LINKSPAN_GUARDED_BY(mutex_) = 0;
  std::map<std::uint64_t, RegistryEntry> entries_ LINKSPAN_GUARDED_BY(mutex_);  // by serial
  /// Also the entries', which have a HostBacking: few, where messages make thousands without.
  std::map<std::uint64_t, std::shared_ptr<const Registration>> backed_ LINKSPAN_GUARDED_BY(mutex_);
  std::size_t exclusive_ LINKSPAN_GUARDED_BY(mutex_) = 0;  // of the entries
  std::uint64_t last_version_ LINKSPAN_GUARDED_BY(mutex_) = 0;
  std::map<std::string, PublishedSet, std::less<>> names_ LINKSPAN_GUARDED_BY(mutex_);
};

}  // namespace linkspan::memory
