// copy/calibration.hpp - how fast the copiers of one GPU are, measured.
//
// A few copies of its own on a stream of its own, some milliseconds once for each Link. They share
// the GPU with whatever runs there, so the best of three counts.
// Threads: any thread; 100 ms, so off the scheduler's lock and off the Control thread.
// Invariants: the Device outlives it, and nothing of it is freed before its end: to free waits for
// whatever runs on the GPU, a user's kernel too.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/mutex.hpp"
#include "copy/chooser.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream.hpp"

namespace linkspan::copy {

class Calibration {
 public:
  static constexpr Duration kLimit = std::chrono::milliseconds(100);
  /// Of GPU memory twice, and pinned.
  static constexpr std::uint64_t kBytes = std::uint64_t{4} << 20;
  static constexpr std::uint64_t kMin = std::uint64_t{1} << 20;

  /// `ctas`: of a kernel at most, not 0. `device` has its kernels.
  static Result<std::unique_ptr<Calibration>> create(const cuda::Device& device, unsigned ctas,
                                                     Duration limit = kLimit);

  /// Over Link::host and same_gpu: between own memory. Null: not known, and not to be had now.
  /// Else lives as long as this.
  const Rates* rates(Link link);
  /// Over Link::peer: reads `bytes` bytes at `from`, memory of another GPU, the first of which
  /// counts for all. `mapping` keeps it mapped, should it still be read at the limit. Null also of
  /// fewer than kMin.
  const Rates* rates_to(cuda::CUdeviceptr from, std::uint64_t bytes,
                        std::shared_ptr<const void> mapping);

 private:
  Calibration(const cuda::Device& device, unsigned ctas, Duration limit, cuda::PinnedBuffer pinned,
              cuda::DeviceBuffer gpu, cuda::Stream stream);
  const Rates* find_or_measure(Link link, const Piece& piece, std::shared_ptr<const void> mapping);
  std::optional<Rate> measure(Method method, unsigned many, const Piece& piece)
      LINKSPAN_REQUIRES(mutex_);
  /// Microseconds of `pieces` copies of so many bytes.
  std::optional<double> best(Method method, const Piece& piece, unsigned pieces)
      LINKSPAN_REQUIRES(mutex_);
  bool run(Method method, std::span<const Piece> pieces) LINKSPAN_REQUIRES(mutex_);
  bool is_quiet() const LINKSPAN_REQUIRES(mutex_);

  const cuda::Device& device_;
  const unsigned ctas_;
  const Duration limit_;
  base::Mutex mutex_;  // one measurement at a time
  std::array<std::optional<Rates>, 3> known_ LINKSPAN_GUARDED_BY(mutex_);  // by Link; never changed
  std::shared_ptr<const void> mapping_ LINKSPAN_GUARDED_BY(mutex_);        // also the import's
  cuda::PinnedBuffer pinned_;
  cuda::DeviceBuffer gpu_;
  cuda::Stream stream_;  // last: ends before what it writes to
  std::uint64_t runs_ LINKSPAN_GUARDED_BY(mutex_) = 0;
  base::Time deadline_ LINKSPAN_GUARDED_BY(mutex_){};
};

}  // namespace linkspan::copy
