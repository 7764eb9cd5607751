// vcache/native/src/gpus.hpp - the driver of this process and the primary contexts of its GPUs.
//
// Created by the first call that needs them, and kept until the process ends: a retained context
// has no further cost, and the driver destroys it at exit. Threads: any thread.
#pragma once

#include <deque>
#include <set>
#include <utility>

#include "base/mutex.hpp"
#include "cuda/device_scope.hpp"
#include "vcache/native/src/outcome.hpp"

namespace linkspan::nvlink {

class Gpus {
 public:
  /// Returns the object, or null with the reason in `why`. 35: no driver. 100: no GPU is visible.
  /// Another number: cuInit's.
  static Gpus* get(Outcome& why);

  const cuda::Driver& driver() const noexcept { return driver_; }
  /// Returns the primary context. 101: no GPU of that ordinal. The first call for a GPU takes up to
  /// 0.5 s.
  Outcome context(int ordinal, cuda::CUcontext& context) LINKSPAN_EXCLUDES(mutex_);
  /// Returns whether a copy between the GPUs is staged through host memory, and logs that once for
  /// each pair.
  bool staged(int from, int to) LINKSPAN_EXCLUDES(mutex_);

 private:
  explicit Gpus(const cuda::Driver& driver, int count) : driver_(driver), count_(count) {}

  const cuda::Driver driver_;
  const int count_;
  base::Mutex mutex_;
  // By ordinal; null: not retained yet.
  std::deque<cuda::CUcontext> contexts_ LINKSPAN_GUARDED_BY(mutex_);
  std::set<std::pair<int, int>> direct_ LINKSPAN_GUARDED_BY(mutex_);
  std::set<std::pair<int, int>> staged_ LINKSPAN_GUARDED_BY(mutex_);
};

}  // namespace linkspan::nvlink
