// vcache/native/src/spares.hpp - a pool of streams and events that are reused.
//
// Creating many of them may wait for a stream that is blocked (docs/cuda_notes.md, "calls that
// synchronise"). So the first asynchronous transfer of a GPU creates enough for most, and none is
// ever destroyed. Threads: any thread.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "base/mutex.hpp"
#include "cuda/driver.hpp"

namespace linkspan::nvlink {

class Spares {
 public:
  /// Returns the one pool, which is never destroyed.
  static Spares& only();

  // Takes an event or stream from the pool, or creates one. The GPU's context must be current.
  cuda::CUresult take(const cuda::Driver& driver, int gpu, cuda::CUevent& event)
      LINKSPAN_EXCLUDES(mutex_);
  cuda::CUresult take(const cuda::Driver& driver, int gpu, cuda::CUstream& stream)
      LINKSPAN_EXCLUDES(mutex_);
  /// Returns a stream or event to the pool that it was taken from. A stream must be idle; an event
  /// may be recorded again. Needs no memory.
  void release(int gpu, cuda::CUevent event) noexcept LINKSPAN_EXCLUDES(mutex_);
  void release(int gpu, cuda::CUstream stream) noexcept LINKSPAN_EXCLUDES(mutex_);

 private:
  template <class T>
  struct Pool {
    std::vector<T> spare;  // has room for all that were created
    std::size_t created = 0;
  };
  struct Of {
    Pool<cuda::CUevent> events;
    Pool<cuda::CUstream> streams;
  };
  cuda::CUresult fill(const cuda::Driver& driver, Of& of) LINKSPAN_REQUIRES(mutex_);

  base::Mutex mutex_;
  std::map<int, Of> of_ LINKSPAN_GUARDED_BY(mutex_);  // by GPU
};

}  // namespace linkspan::nvlink
