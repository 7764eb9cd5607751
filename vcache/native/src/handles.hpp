// vcache/native/src/handles.hpp - open CUDA IPC handles, and the cache that keeps some of them
// open.
//
// A handle differs from those of all other allocations of its exporter, also of a later one at the
// same address (fact: Handles.ALaterAllocationHasAnotherHandle). So a cached mapping never stands
// for new memory. Threads: any thread. Opening and closing run without the mutex. Invariants: each
// mapping is closed once, when the cache and the last transfer have released it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <utility>

#include "vcache/native/src/gpus.hpp"

namespace linkspan::nvlink {

using Handle = std::array<std::byte, NVLINK_TRANSFER_HANDLE_BYTES>;

/// An allocation of another process, mapped for one GPU.
class OpenHandle {
 public:
  OpenHandle(const cuda::Driver& driver, cuda::CUcontext context) noexcept
      : driver_(driver), context_(context) {}
  OpenHandle(const OpenHandle&) = delete;
  OpenHandle& operator=(const OpenHandle&) = delete;
  ~OpenHandle();  ///< Closes the mapping; waits for the work in flight on that GPU.

  /// Maps the allocation, once. The context is current.
  cuda::CUresult open(const Handle& handle);
  std::uint64_t base() const noexcept { return base_; }
  std::uint64_t bytes() const noexcept { return bytes_; }
  /// Asks the driver for the size; the bytes of the handle are not trusted.
  Outcome measure(const std::string& what);

 private:
  const cuda::Driver& driver_;
  const cuda::CUcontext context_;
  std::uint64_t base_ = 0, bytes_ = 0;  // 0: not open
};

class HandleCache {
 public:
  static constexpr unsigned kMax = 65536;

  /// Returns the one cache. It is never destroyed: the driver closes open mappings at exit.
  static HandleCache& only();

  /// Returns a cached or a new mapping. The GPU's context is current. OK with a null `mapping`: the
  /// handle belongs to this process, which cannot open it.
  Outcome open(Gpus& gpus, int ordinal, const Handle& handle, const std::string& what,
               std::shared_ptr<OpenHandle>& mapping) LINKSPAN_EXCLUDES(mutex_);
  void keep(unsigned most) LINKSPAN_EXCLUDES(mutex_);

  unsigned kept() const LINKSPAN_EXCLUDES(mutex_);
  std::uint64_t open_now() const noexcept { return opens_ - closes_; }
  std::uint64_t opens() const noexcept { return opens_; }
  std::uint64_t hits() const noexcept { return hits_; }

 private:
  friend class OpenHandle;  // which counts its opening and closing
  using Key = std::pair<int, Handle>;
  struct Entry {
    std::shared_ptr<OpenHandle> mapping;  // shared with transfers in flight
    std::list<Key>::iterator place;
  };
  /// Removes the entries beyond the limit, and returns them to be closed without the lock. Needs no
  /// memory.
  std::map<Key, Entry> trim() LINKSPAN_REQUIRES(mutex_);

  mutable base::Mutex mutex_;
  unsigned most_ LINKSPAN_GUARDED_BY(mutex_) = 0;
  std::list<Key> by_use_ LINKSPAN_GUARDED_BY(mutex_);  // most recently used first
  std::map<Key, Entry> entries_ LINKSPAN_GUARDED_BY(mutex_);
  std::atomic<std::uint64_t> opens_{0}, closes_{0}, hits_{0};
};

}  // namespace linkspan::nvlink
