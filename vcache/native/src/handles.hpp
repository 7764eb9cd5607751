// vcache/native/src/handles.hpp - CUDA IPC handles that are open, and which of them stay so.
//
// A handle differs from that of every other allocation of its exporter, also of a later one at the
// same address (fact: Handles.ALaterAllocationHasAnotherHandle): so what is kept open under a
// handle never stands for new memory.
// Threads: any thread. Opening and closing run without the mutex.
// Invariants: each open is closed once, when the last transfer that uses it and the cache let go.
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
  OpenHandle(const cuda::Driver& driver, cuda::CUcontext context, std::uint64_t base) noexcept
      : driver_(driver), context_(context), base_(base) {}
  OpenHandle(const OpenHandle&) = delete;
  OpenHandle& operator=(const OpenHandle&) = delete;
  ~OpenHandle();  ///< Waits for what is in flight on that GPU.

  std::uint64_t base() const noexcept { return base_; }
  std::uint64_t bytes() const noexcept { return bytes_; }
  /// By the driver, never by the handle's words.
  Outcome measure(const std::string& what);

 private:
  const cuda::Driver& driver_;
  const cuda::CUcontext context_;
  const std::uint64_t base_;
  std::uint64_t bytes_ = 0;
};

class HandleCache {
 public:
  static constexpr unsigned kMax = 65536;

  /// Never destroyed: at exit the driver closes what is open.
  static HandleCache& only();

  /// An open one, or a fresh one. `context` is the GPU's, and current. `mapping` null beside OK:
  /// the handle is of this very process, which cannot open it.
  Outcome open(Gpus& gpus, int ordinal, const Handle& handle, const std::string& what,
               std::shared_ptr<OpenHandle>& mapping) LINKSPAN_EXCLUDES(mutex_);
  void keep(unsigned most) LINKSPAN_EXCLUDES(mutex_);

  unsigned kept() const LINKSPAN_EXCLUDES(mutex_);
  std::uint64_t open_now() const noexcept { return opens_ - closes_; }
  std::uint64_t opens() const noexcept { return opens_; }
  std::uint64_t hits() const noexcept { return hits_; }

 private:
  friend class OpenHandle;  // which counts its end
  using Key = std::pair<int, Handle>;
  struct Entry {
    std::shared_ptr<OpenHandle> mapping;  // also of transfers under way
    std::list<Key>::iterator place;
  };
  /// Those that go, to be dropped off the lock.
  std::list<std::shared_ptr<OpenHandle>> trim() LINKSPAN_REQUIRES(mutex_);

  mutable base::Mutex mutex_;
  unsigned most_ LINKSPAN_GUARDED_BY(mutex_) = 0;
  std::list<Key> by_use_ LINKSPAN_GUARDED_BY(mutex_);  // the last used first
  std::map<Key, Entry> entries_ LINKSPAN_GUARDED_BY(mutex_);
  std::atomic<std::uint64_t> opens_{0}, closes_{0}, hits_{0};
};

}  // namespace linkspan::nvlink
