// engine/registration/unregistered_buffers.hpp - registers the memory of send() and recv() for its
// message.
//
// On the path of a byte: before the match. A pointer becomes a registered region that lives at
// least as long as its message.
//  - GPU and pinned memory: the whole allocation is registered once, found again by CUDA's buffer
//    id (an address is used again after a free, a buffer id never), and kept until it is stale or
//    the least recently used of too many.
//  - Engine::allocate_shared memory: the user's own registration is used.
//  - Private host memory and exclusive memory: registered for the one message.
//  - For a peer that only networks reach, the bytes of the message are a region of their own within
//    the registered one. The peer's key covers these bytes in one direction and ends with the
//    message.
// Threads: any thread. acquire_buffer() may take milliseconds and is never called under the
// peer's mutex; TemporaryRegistration::release() is called under it.
// Invariants: the region of a TemporaryRegistration stays registered and published until release()
// has returned OK.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "base/mutex.hpp"
#include "cuda/topology.hpp"
#include "engine/registration/keys.hpp"
#include "memory/registry.hpp"

namespace linkspan::engine {

class UnregisteredBuffers;

/// The registered memory of one message; empty if the message has no bytes.
/// Threads: externally synchronised.
class TemporaryRegistration {
 public:
  TemporaryRegistration() = default;
  TemporaryRegistration(TemporaryRegistration&& other) noexcept = default;
  TemporaryRegistration& operator=(TemporaryRegistration&& other) noexcept = default;
  TemporaryRegistration(const TemporaryRegistration&) = delete;
  TemporaryRegistration& operator=(const TemporaryRegistration&) = delete;
  ~TemporaryRegistration() = default;  // released before, or the process is ending

  const std::shared_ptr<const memory::Registration>& registration() const noexcept {
    return registration_;
  }
  /// Returns the keys, or null for the user's own registration, whose keys RegistrationService has.
  const std::shared_ptr<const Keys>& keys() const noexcept { return keys_; }
  /// Returns where the message begins in its region.
  std::uint64_t offset() const noexcept { return offset_; }
  bool one_shot() const noexcept { return one_shot_; }  ///< Registered for this message alone.
  /// Returns whether the message lies in that registration or in a part of it.
  bool lies_in(const memory::Registration& registration) const noexcept {
    return registration_.get() == &registration || whole_.get() == &registration;
  }
  std::uint64_t serial() const noexcept {
    return registration_ == nullptr ? 0 : registration_->id().serial;
  }
  MemoryKind kind() const noexcept {
    return registration_ == nullptr ? MemoryKind::host : registration_->region().facts().kind;
  }
  GpuUuid gpu() const noexcept {
    return registration_ == nullptr ? GpuUuid{} : registration_->region().facts().gpu;
  }

  /// Ends the registration. Requires that no transfer of ours uses it and that the peer has said
  /// the same. busy: the peer still uses it; call again.
  Status release();

 private:
  friend class UnregisteredBuffers;

  UnregisteredBuffers* owner_ = nullptr;
  std::shared_ptr<const memory::Registration> registration_;  // also the registry's; acquired
  std::shared_ptr<const Keys> keys_;                          // also cached_'s
  std::uint64_t offset_ = 0;
  bool one_shot_ = false;
  // The region of which `registration_` is a part, or null.
  std::shared_ptr<const memory::Registration> whole_;  // also the registry's; acquired
};

class UnregisteredBuffers {
 public:
  /// The arguments outlive this object. `topology` is null without a GPU.
  UnregisteredBuffers(memory::Registry& registry, const cuda::Topology* topology,
                      const Transports& transports)
      : registry_(registry), topology_(topology), transports_(transports) {}

  static constexpr std::size_t kMaxCached = 64;

  /// Registers or finds the memory. `peer_reads`: the peer may read it, else it may write it if it
  /// is a GPU's; cached and shared memory may be read and written by a peer of this host.
  /// `by_wire`: only networks reach the peer. Costs one pointer query, or one for each chunk that
  /// cuMemMap mapped. invalid_argument: not memory, or the range leaves its allocation.
  /// unsupported: managed memory.
  Result<TemporaryRegistration> acquire_buffer(const void* pointer, std::uint64_t bytes,
                                               bool peer_reads, bool by_wire)
      LINKSPAN_EXCLUDES(registration_mutex_, mutex_);

 private:
  friend class TemporaryRegistration;

  struct CachedAllocation {
    std::uint64_t buffer = 0;
    std::shared_ptr<const memory::Registration> registration;  // also the registry's and messages'
    std::shared_ptr<const Keys> keys;                          // also messages'
    std::uint64_t used = 0;                                    // value of uses_ at the last use
  };

  Result<TemporaryRegistration> register_allocation(const void* pointer, std::uint64_t bytes,
                                                    std::uint64_t buffer)
      LINKSPAN_EXCLUDES(registration_mutex_, mutex_);
  Result<TemporaryRegistration> register_one_shot(std::uint64_t address, std::uint64_t bytes,
                                                  MemoryKind kind, bool peer_reads);
  Result<TemporaryRegistration> register_exclusive(const void* pointer, std::uint64_t bytes,
                                                   MemoryKind kind, bool peer_reads);
  Result<TemporaryRegistration> acquire_region(const void* pointer, std::uint64_t bytes,
                                               bool peer_reads)
      LINKSPAN_EXCLUDES(registration_mutex_, mutex_);
  /// Registers the message's bytes as a region of their own within `temporary`, which it takes
  /// over.
  Result<TemporaryRegistration> register_part(TemporaryRegistration temporary, std::uint64_t bytes,
                                              bool peer_reads);
  using Publishing = Result<std::shared_ptr<const Keys>>(const Transports&, const memory::Region&);
  Result<TemporaryRegistration> publish_one_shot(
      Result<std::shared_ptr<const memory::Registration>> made, Publishing* publish);
  /// Returns the cached registration, acquired, or an empty one if that buffer is not cached.
  /// invalid_argument: the bytes leave the allocation.
  Result<TemporaryRegistration> find_cached(std::uint64_t address, std::uint64_t bytes,
                                            std::uint64_t buffer) LINKSPAN_EXCLUDES(mutex_);
  bool has_same_chunks(const memory::Region::Facts& facts, std::uint64_t address,
                       std::uint64_t bytes, std::uint64_t buffer) const;
  void make_room(std::uint64_t begin, std::uint64_t bytes) LINKSPAN_REQUIRES(registration_mutex_)
      LINKSPAN_EXCLUDES(mutex_);

  memory::Registry& registry_;
  const cuda::Topology* const topology_;
  const Transports& transports_;

  base::Mutex registration_mutex_;  // one registration at a time; locked before mutex_
  // Removed from cached_, while a peer has not answered yet or a message still uses them.
  std::vector<std::shared_ptr<const memory::Registration>> retiring_
      LINKSPAN_GUARDED_BY(registration_mutex_);

  mutable base::Mutex mutex_;  // a leaf
  std::map<std::uint64_t, CachedAllocation> cached_
      LINKSPAN_GUARDED_BY(mutex_);  // by the address of the allocation
  std::uint64_t uses_ LINKSPAN_GUARDED_BY(mutex_) = 0;
};

}  // namespace linkspan::engine
