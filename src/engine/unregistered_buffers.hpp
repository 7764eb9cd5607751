// engine/unregistered_buffers.hpp - the memory of send() and recv(), which nobody registered.
//
// On the path of a byte before the match: a pointer becomes a registered region that lives at least
// as long as its message. GPU and pinned memory: the whole allocation is registered once, found
// again by CUDA's buffer id (an address is used again after a free, a buffer id never) and kept
// until it is stale or the least recently used of too many. What Engine::allocate_shared made is
// the user's own registration. Private host memory, and what is exclusive, is registered for the
// one message and never looked up by its address. For a peer that is reached by wires alone the
// bytes of the message are a region of their own within the registered one: the peer's key is of
// these, in one direction, and dead with the message.
// Threads: any thread. acquire_buffer() may take milliseconds, never under the scheduler's lock;
// TemporaryRegistration::release() under it.
// Invariants: what a TemporaryRegistration holds is registered and published until release()
// answered OK.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "base/mutex.hpp"
#include "cuda/topology.hpp"
#include "engine/keys.hpp"
#include "memory/registry.hpp"

namespace linkspan::engine {

class UnregisteredBuffers;

/// Memory of one message. Empty: the message has no bytes.
/// Threads: externally synchronised.
class TemporaryRegistration {
 public:
  TemporaryRegistration() = default;
  TemporaryRegistration(TemporaryRegistration&& other) noexcept = default;
  TemporaryRegistration& operator=(TemporaryRegistration&& other) noexcept = default;
  TemporaryRegistration(const TemporaryRegistration&) = delete;
  TemporaryRegistration& operator=(const TemporaryRegistration&) = delete;
  ~TemporaryRegistration() = default;  // given back before, or the process is ending

  const std::shared_ptr<const memory::Registration>& registration() const noexcept {
    return registration_;
  }
  /// Null: the user's own registration, whose keys the EngineImpl has.
  const std::shared_ptr<const Keys>& keys() const noexcept { return keys_; }
  std::uint64_t offset() const noexcept { return offset_; }  ///< Of the message in the region.
  bool one_shot() const noexcept { return one_shot_; }       ///< For this message only.
  /// Whether the message lies in that registration, or in a part of it.
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

  /// Requires: no transfer of ours uses it and the peer has said that it does not either. busy: it
  /// has lied, ask again.
  Status release();

 private:
  friend class UnregisteredBuffers;

  UnregisteredBuffers* owner_ = nullptr;
  std::shared_ptr<const memory::Registration> registration_;  // also the registry's; acquired
  std::shared_ptr<const Keys> keys_;                          // also the cache's
  std::uint64_t offset_ = 0;
  bool one_shot_ = false;
  // The region that this message's own registration is a part of, or null.
  std::shared_ptr<const memory::Registration> whole_;  // also the registry's; acquired
};

class UnregisteredBuffers {
 public:
  /// All outlive it. `topology` null: no GPU here.
  UnregisteredBuffers(memory::Registry& registry, const cuda::Topology* topology,
                      const Transports& transports)
      : registry_(registry), topology_(topology), transports_(transports) {}
  UnregisteredBuffers(const UnregisteredBuffers&) = delete;
  UnregisteredBuffers& operator=(const UnregisteredBuffers&) = delete;
  ~UnregisteredBuffers() = default;

  static constexpr std::size_t kMaxCached = 64;

  /// `peer_reads`: the peer may read it, else write it where it is a GPU's; what is kept or shared
  /// a peer of this host may read and write. `by_wire`: the peer is reached by wires alone. One
  /// pointer query; of memory that cuMemMap mapped one for each chunk. invalid_argument: no memory,
  /// or it leaves its allocation. unsupported: managed memory.
  Result<TemporaryRegistration> acquire_buffer(const void* pointer, std::uint64_t bytes,
                                               bool peer_reads, bool by_wire)
      LINKSPAN_EXCLUDES(registration_mutex_, mutex_);

 private:
  friend class TemporaryRegistration;

  struct CachedAllocation {
    std::uint64_t buffer = 0;
    std::shared_ptr<const memory::Registration> registration;  // also the registry's and Loans'
    std::shared_ptr<const Keys> keys;                          // also Loans'
    std::uint64_t used = 0;                                    // when, by count
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
  /// Lends that part of a temporary alone, which it takes over.
  Result<TemporaryRegistration> register_part(TemporaryRegistration temporary, std::uint64_t bytes,
                                              bool peer_reads);
  using Publishing = Result<std::shared_ptr<const Keys>>(const Transports&, const memory::Region&);
  Result<TemporaryRegistration> publish_one_shot(
      Result<std::shared_ptr<const memory::Registration>> made, Publishing* publish);
  /// Empty: nothing of that buffer is cached. Else acquired, if the bytes lie within it.
  Result<TemporaryRegistration> find_cached(std::uint64_t address, std::uint64_t bytes,
                                            std::uint64_t buffer) LINKSPAN_EXCLUDES(mutex_);
  bool has_same_chunks(const memory::Region::Facts& facts, std::uint64_t address,
                       std::uint64_t bytes, std::uint64_t buffer) const;
  void make_room(std::uint64_t begin, std::uint64_t bytes) LINKSPAN_REQUIRES(registration_mutex_)
      LINKSPAN_EXCLUDES(mutex_);

  memory::Registry& registry_;
  const cuda::Topology* const topology_;
  const Transports& transports_;

  base::Mutex registration_mutex_;  // one registration at a time; outside mutex_
  // Retracted, but a peer has not answered yet or a message still uses it.
  std::vector<std::shared_ptr<const memory::Registration>> retiring_
      LINKSPAN_GUARDED_BY(registration_mutex_);

  mutable base::Mutex mutex_;  // a leaf
  std::map<std::uint64_t, CachedAllocation> cached_
      LINKSPAN_GUARDED_BY(mutex_);  // by the allocation's base
  std::uint64_t uses_ LINKSPAN_GUARDED_BY(mutex_) = 0;
};

}  // namespace linkspan::engine
