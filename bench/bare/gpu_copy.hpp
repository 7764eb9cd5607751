// bench/bare/gpu_copy.hpp - the least that a copy by a GPU's copy engine can cost: the ceiling.
//
// One cuMemcpyAsync on one stream, a WriteValue behind it, a spin on the word that it writes. No
// queue, no lock, no choice of a path: what linkspan adds to this is its price.
// Threads: externally synchronised.
// Invariants: the Device outlives it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "bench/bare/end_word.hpp"
#include "cuda/stream.hpp"
#include "cuda/topology.hpp"
#include "linkspan/status.hpp"
#include "linkspan/types.hpp"

namespace linkspan::bare {

/// Any two addresses that the device's context knows, pageable host memory too.
struct Way {
  cuda::CUdeviceptr to, from;
};

class GpuCopy {
 public:
  static Result<std::unique_ptr<GpuCopy>> create(const cuda::Device& device);

  /// From the call to the moment that the host sees the end: of `depth` such copies, side by side,
  /// the last one's, for a flag behind each would hold up the next. timed_out: the copy may still
  /// run, so that the memory must live on; only the destruction of this is allowed then.
  Result<Duration> run(Way way, std::size_t bytes, Duration limit, unsigned depth = 1);
  /// The copy and cuStreamSynchronize: from the call to the return.
  Result<Duration> run_synchronised(Way way, std::size_t bytes);
  /// Two at once, each by its own: until the later one's end.
  static Result<Duration> run_both(GpuCopy& one, Way way, GpuCopy& other, Way other_way,
                                   std::size_t bytes, Duration limit);

 private:
  GpuCopy(const cuda::Device& device, cuda::Stream stream, EndWord word)
      : device_(device), stream_(std::move(stream)), word_(std::move(word)) {}
  Status start(const cuda::DeviceScope& scope, Way way, std::size_t bytes, unsigned depth);

  const cuda::Device& device_;
  cuda::Stream stream_;
  EndWord word_;
  std::uint64_t runs_ = 0;  // what the word holds after the last copy
};

}  // namespace linkspan::bare
