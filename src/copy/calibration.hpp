// copy/calibration.hpp - measures how fast the copiers of one GPU are.
//
// Runs a few copies of its own on a stream of its own, some milliseconds once for each Link. They
// share the GPU with whatever runs there, so the best of three counts. Off the path of a byte.
// Threads: any thread; takes up to 100 ms, so off the peer's mutex and the control thread.
// Invariants: the Device outlives it; its memory is freed only at its end, because freeing waits
// for whatever runs on the GPU, a user's kernel too.
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
  /// Bytes of a large copy. There are two such areas in GPU memory and one in pinned memory.
  static constexpr std::uint64_t kBytes = std::uint64_t{4} << 20;
  static constexpr std::uint64_t kMin = std::uint64_t{1} << 20;

  /// Makes a calibration. `ctas`, not 0, is the maximum for a kernel. `device` has its kernels.
  static Result<std::unique_ptr<Calibration>> create(const cuda::Device& device, unsigned ctas,
                                                     Duration limit = kLimit);

  /// Returns the rates over Link::host or same_gpu, between own memory. Null: not known, and not
  /// measurable now. The result lives as long as the Calibration.
  const Rates* rates(Link link);
  /// Returns the rates over Link::peer, by reading `bytes` bytes at `from`, memory of another GPU;
  /// the first GPU stands for all. `mapping` keeps it mapped if it is still read at the limit. Null
  /// also for fewer than kMin bytes.
  const Rates* rates_to(cuda::CUdeviceptr from, std::uint64_t bytes,
                        std::shared_ptr<const void> mapping);

 private:
  Calibration(const cuda::Device& device, unsigned ctas, Duration limit, cuda::PinnedBuffer pinned,
              cuda::DeviceBuffer gpu, cuda::Stream stream);
  const Rates* find_or_measure(Link link, const Piece& piece, std::shared_ptr<const void> mapping);
  std::optional<Rate> measure(Method method, unsigned many, const Piece& piece)
      LINKSPAN_REQUIRES(mutex_);
  /// Returns the microseconds of `pieces` copies of the piece.
  std::optional<double> best(Method method, const Piece& piece, unsigned pieces)
      LINKSPAN_REQUIRES(mutex_);
  bool run(Method method, std::span<const Piece> pieces) LINKSPAN_REQUIRES(mutex_);
  bool is_quiet() const LINKSPAN_REQUIRES(mutex_);

  const cuda::Device& device_;
  const unsigned ctas_;
  const Duration limit_;
  base::Mutex mutex_;  // serialises measurements
  std::array<std::optional<Rates>, 3> known_ LINKSPAN_GUARDED_BY(mutex_);  // by Link; set once
  std::shared_ptr<const void> mapping_ LINKSPAN_GUARDED_BY(mutex_);        // shared with the import
  cuda::PinnedBuffer pinned_;
  cuda::DeviceBuffer gpu_;
  cuda::Stream stream_;  // last: ends before the memory that it writes to
  std::uint64_t runs_ LINKSPAN_GUARDED_BY(mutex_) = 0;
  base::Time deadline_ LINKSPAN_GUARDED_BY(mutex_){};
};

}  // namespace linkspan::copy
