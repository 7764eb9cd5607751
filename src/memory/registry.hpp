// memory/registry.hpp - the registrations of one Engine: the memory that the user has registered.
//
// Registration queries, checks and stores the facts about a pointer and pins host memory, so that
// the path of a byte only finds a Registration and reads it.
// Threads: any thread. add(), allocate_shared() and pin_shared() may take milliseconds in the
// driver, without the mutex.
// Invariants: a Registration in the table is not retired, and one that was removed is never used
// again; no two have the same id; a Registration has the name of its only set, and a set is
// complete or absent; memory that a peer can map with a region contains no exclusive region.
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
#include "memory/anonymous_ranges.hpp"
#include "memory/descriptor.hpp"
#include "memory/region.hpp"

namespace linkspan::cuda {
class Device;
class Topology;
}  // namespace linkspan::cuda

namespace linkspan::memory {

/// Host memory that linkspan allocated or pinned; several registrations may share it.
class HostBacking;

/// One registered Region and what must live as long as it.
/// Threads: immutable after construction, except the atomic count of users.
class Registration {
 public:
  Registration(std::unique_ptr<const Region> region, std::shared_ptr<HostBacking> backing)
      : region_(std::move(region)), backing_(std::move(backing)) {}

  const Region& region() const noexcept { return *region_; }
  const RegionId& id() const noexcept { return region_->facts().id; }
  /// Returns whether the driver has pinned the pages, so that a GPU copies without staging. True
  /// for GPU memory. `shared` memory is pinned by pin_shared().
  bool pinned() const noexcept;

  /// Returns whether it is memory of the user that its end unpins.
  bool unpins() const noexcept;

  /// Counts a transfer in flight that borrows the Region. Returns false if it has been removed and
  /// must not be used.
  [[nodiscard]] bool acquire() const noexcept;
  void release() const noexcept;
  std::uint32_t users() const noexcept { return users_.load() & ~kRetired; }
  /// Returns true after Registry::remove().
  bool removed() const noexcept { return (users_.load() & kRetired) != 0; }

 private:
  friend class Registry;
  static constexpr std::uint32_t kRetired = 1u << 31;
  bool retire() const noexcept;  // false: still in use

  std::unique_ptr<const Region> region_;
  std::shared_ptr<HostBacking> backing_;  // shared with other registrations; null: none
  mutable std::atomic<std::uint32_t> users_{0};
};

/// The table of registrations and names.
class Registry {
 public:
  /// Makes an empty table. `topology` must outlive the Registry and all Registrations; null: no GPU
  /// here.
  Registry(std::uint64_t incarnation, cuda::Topology* topology);
  ~Registry();
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  /// Registers memory of the user, which must stay valid until remove(). `pin` pins host memory,
  /// which makes copies to a GPU faster and registration slower; it activates the first GPU if none
  /// is active. Adjacent chunks of cuMemMap count as one allocation. invalid_argument: no memory,
  /// or not within one allocation. unsupported: managed memory; pin without a GPU.
  Result<std::shared_ptr<const Registration>> add(void* pointer, std::uint64_t bytes,
                                                  Permissions peers, bool pin);
  /// Registers private host memory for one message; the caller knows whether it is pinned. Makes no
  /// driver call. invalid_argument: not all of it is mapped.
  Result<std::shared_ptr<const Registration>> add_private(std::uint64_t address,
                                                          std::uint64_t bytes, MemoryKind kind,
                                                          Permissions peers);
  /// Registers a part of a region for one message over a network transport. The region must outlive
  /// it. Makes no driver call. invalid_argument: it exceeds the region.
  Result<std::shared_ptr<const Registration>> add_part(const Registration& whole,
                                                       std::uint64_t offset, std::uint64_t bytes,
                                                       Permissions peers);
  /// Allocates zeroed memory that every local peer can map, with an fd of its own. It is pinned if
  /// a GPU is active.
  Result<std::shared_ptr<const Registration>> allocate_shared(std::uint64_t bytes,
                                                              Permissions peers);
  /// Pins all shared memory that is not pinned yet. Call it after activating a GPU; has no effect
  /// if none is active.
  Status pin_shared();

  /// Returns the registration, or null if it does not exist or was removed.
  std::shared_ptr<const Registration> find(const RegionId& id) const;
  /// Returns a shared region around these bytes that peers may map, read and write, or null.
  std::shared_ptr<const Registration> find_shared(std::uint64_t address, std::uint64_t bytes) const;
  /// Returns whether any of these bytes, or of the allocation that a peer would map with them, is
  /// registered as exclusive. `buffer`: CUDA's id for GPU memory, else 0.
  bool any_exclusive(std::uint64_t address, std::uint64_t bytes, std::uint64_t buffer) const;
  std::vector<std::shared_ptr<const Registration>> all() const;
  /// A copy of what dumps show. It is not a Registration, which would keep the memory pinned.
  struct RegionSummary {
    Region::Facts facts;
    std::string name;
    bool pinned = false;
    std::uint32_t users = 0;
  };
  /// Returns the first `most` registrations, and the number of all.
  std::pair<std::vector<RegionSummary>, std::size_t> list(std::size_t most) const;

  // registry_names.cpp
  /// Sets the name under which peers look the region up, replacing any older one. An empty name
  /// unpublishes the region together with the rest of its set. invalid_argument: used by others,
  /// one of a set, or too long.
  Status set_name(const RegionId& id, std::string_view name);
  /// Publishes the regions under the name, at once, in place of what the name stood for. Returns
  /// the version, which grows with every publication here. On error nothing has changed.
  /// invalid_argument: no regions or too many, a bad name, one of another set. not_found: one is
  /// not registered.
  Result<std::uint64_t> publish(std::string_view name, std::span<const RegionId> ids);
  /// Returns the name; empty if there is none.
  std::string name(const RegionId& id) const;
  /// Returns the set that the name stands for now, if any.
  std::optional<PublishedSet> find_set(std::string_view name) const;
  /// What a name stands for: the version of a set, or 0 for one region, and its regions in order.
  struct Description {
    std::uint64_t version = 0;
    std::vector<std::shared_ptr<const Registration>> regions;
  };
  /// Returns what the name stands for now. not_found: nothing.
  Result<Description> describe(std::string_view name) const;
  /// Returns the region of that serial in the set, or with serial 0 the only region of the name.
  /// not_found: neither exists. invalid_argument: the name stands for several.
  Result<std::shared_ptr<const Registration>> find_name(std::string_view name,
                                                        std::uint64_t serial = 0) const;

  /// Removes the registration, after every transport has retracted it. busy: transfers still borrow
  /// it. Afterwards acquire() fails. The pin and linkspan's own memory end with the last reference
  /// to the Registration, so the user's memory should not be freed before.
  Status remove(const RegionId& id);

 private:
  struct RegistryEntry {
    std::shared_ptr<const Registration> registration;  // shared with callers of find()
    std::string name;
  };

  Result<std::shared_ptr<const Registration>> insert(Region::Facts facts,
                                                     std::shared_ptr<HostBacking> backing);
  /// Returns the backing of a registration around `address`, or null.
  std::shared_ptr<HostBacking> backing_of(std::uint64_t address) const;
  Result<const cuda::Device*> device_to_pin(bool bring_up) const;
  const RegistryEntry* entry_of(const RegionId& id) const LINKSPAN_REQUIRES(mutex_);
  Status may_leave(const RegistryEntry& entry, std::string_view name) const
      LINKSPAN_REQUIRES(mutex_);
  std::uint64_t replace_set(std::string_view name, std::vector<std::uint64_t> serials, bool single)
      LINKSPAN_REQUIRES(mutex_);
  void unpublish(std::string_view name) LINKSPAN_REQUIRES(mutex_);
  /// Returns a registration that overlaps what a peer can map with these bytes, and whose
  /// `exclusive` equals the argument; or null.
  const Registration* find_overlapping(const Region::Facts& facts, bool exclusive) const
      LINKSPAN_REQUIRES(mutex_);

  const std::uint64_t incarnation_;
  cuda::Topology* const topology_;
  AnonymousRanges anonymous_;

  mutable base::Mutex mutex_;
  std::uint64_t last_serial_ LINKSPAN_GUARDED_BY(mutex_) = 0;
  std::map<std::uint64_t, RegistryEntry> entries_ LINKSPAN_GUARDED_BY(mutex_);  // by serial
  /// The entries that have a HostBacking: few, while messages make thousands without.
  std::map<std::uint64_t, std::shared_ptr<const Registration>> backed_ LINKSPAN_GUARDED_BY(mutex_);
  std::size_t exclusive_ LINKSPAN_GUARDED_BY(mutex_) = 0;  // number in entries_
  std::uint64_t last_version_ LINKSPAN_GUARDED_BY(mutex_) = 0;
  std::map<std::string, PublishedSet, std::less<>> names_ LINKSPAN_GUARDED_BY(mutex_);
};

}  // namespace linkspan::memory
