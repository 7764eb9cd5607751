// copy/calibration.hpp - how fast the copiers of one GPU are, measured.
//
// A few copies of its own on a stream of its own, some milliseconds once in a process for each pair
// of GPU models and Link: who finds them known pays nothing. They share the GPU with whatever runs
// there, so the best of three counts.
// Threads: any thread; off every lock.
// Invariants: the Device outlives it, no measurement takes longer than kLimit, and nothing of it is
// freed before its end: to free waits for whatever runs on the GPU, a user's kernel too.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

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
  static constexpr std::uint64_t kLeast = std::uint64_t{1} << 20;

  /// `ctas`: of a kernel at most, not 0. `device` has its kernels.
  static Result<std::unique_ptr<Calibration>> create(const cuda::Device& device, unsigned ctas,
                                                     Duration limit = kLimit);

  /// Over Link::host and same_gpu: between own memory.
  const Rates* rates(Link link);
  /// Over Link::peer: reads `bytes` bytes at `from`, memory of another GPU of model `other`.
  /// Null: neither known nor to be had now, or fewer than kLeast. Else lives as long as the
  /// process.
  const Rates* rates_to(const std::string& other, cuda::CUdeviceptr from, std::uint64_t bytes);

 private:
  struct Ends {
    cuda::CUdeviceptr to, from;
    std::uint64_t bytes;
  };
  Calibration(const cuda::Device& device, unsigned ctas, Duration limit, cuda::PinnedBuffer pinned,
              cuda::DeviceBuffer gpu, cuda::Stream stream);
  const Rates* find_or_measure(Link link, const std::string& other, const Ends& ends);
  std::optional<Rates> measure(const Ends& ends) LINKSPAN_REQUIRES(mutex_);
  /// Microseconds of `pieces` copies of so many bytes.
  std::optional<double> best(Method method, const Ends& ends, unsigned pieces)
      LINKSPAN_REQUIRES(mutex_);
  bool run(Method method, std::span<const Piece> pieces) LINKSPAN_REQUIRES(mutex_);
  bool is_quiet() const LINKSPAN_REQUIRES(mutex_);

  const cuda::Device& device_;
  const unsigned ctas_;
  const Duration limit_;
  base::Mutex mutex_;  // one measurement at a time
  cuda::PinnedBuffer pinned_;
  cuda::DeviceBuffer gpu_;
  cuda::Stream stream_;  // last: ends before what it writes to
  std::uint64_t runs_ LINKSPAN_GUARDED_BY(mutex_) = 0;
  base::Time by_ LINKSPAN_GUARDED_BY(mutex_){};
};

}  // namespace linkspan::copy
