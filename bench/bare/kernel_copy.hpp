// bench/bare/kernel_copy.hpp - the least that a copy of many pieces by one kernel can cost: the
// ceiling.
//
// The list is put into mapped host memory each time, one launch of the library's kernel reads it
// there (its parameters: src/copy/kernels/copy_blocks.cu), a WriteValue behind it, a spin on the
// word. No Engine, no check of what the list says.
// Threads: externally synchronised.
// Invariants: the Device outlives it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "bench/bare/end_word.hpp"
#include "bench/bare/user_graph.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "cuda/topology.hpp"

namespace linkspan::bare {

/// One copy, in the layout that the kernel reads.
struct KernelPiece {
  std::uint64_t to, from, bytes;
};

/// Page i goes from `from` + from_index[i] * page_bytes to `to` + to_index[i] * page_bytes.
struct KernelPages {
  cuda::CUdeviceptr to, from;
  std::uint64_t page_bytes;
  std::span<const std::uint32_t> to_index, from_index;
};

class KernelCopy {
 public:
  /// `unsupported`: the kernels do not load on that GPU.
  static Result<std::unique_ptr<KernelCopy>> create(const cuda::Device& device);

  /// From before the list is written to the moment that the host sees the end. The first run of a
  /// longer list than any before makes room for it, off the clock. timed_out: as GpuCopy::run().
  /// `again`: the lists lie where the last run, of the same pages or pieces, has put them.
  /// `on_gpu`: that is memory of the GPU, off the clock. Pieces may be of any number of
  /// allocations.
  Result<Duration> run(const KernelPages& pages, Duration limit, bool again = false,
                       bool on_gpu = false);
  Result<Duration> run(std::span<const KernelPiece> pieces, Duration limit, bool again = false,
                       bool on_gpu = false);
  /// Puts the kernel into the graph, with its list in memory of the GPU. This outlives the graph.
  Status capture(std::span<const KernelPiece> pieces, UserGraph& graph);

 private:
  KernelCopy(const cuda::Device& device, cuda::Stream stream, EndWord word, EndWord aborted,
             cuda::DeviceBuffer abort)
      : device_(device),
        stream_(std::move(stream)),
        word_(std::move(word)),
        aborted_(std::move(aborted)),
        abort_(std::move(abort)) {}

  Status reserve(const cuda::DeviceScope& scope, std::uint64_t bytes);
  /// Copies the first `bytes` of the list to memory of the GPU.
  Status upload(const cuda::DeviceScope& scope, std::uint64_t bytes);
  std::uint64_t entry_bytes(std::uint64_t bytes) const;
  /// Counts the entries that pieces are cut into, of at most `entry` bytes each.
  struct ListSize {
    std::uint64_t entry = 0;
    std::uint32_t count = 0;
  };
  ListSize entries_of(std::span<const KernelPiece> pieces) const;
  unsigned ctas_of(std::uint64_t wanted) const;
  Result<Duration> launch(const cuda::DeviceScope& scope, cuda::CUfunction kernel,
                          std::uint64_t ctas, void** parameters, Clock::time_point begin,
                          Duration limit);

  const cuda::Device& device_;
  cuda::Stream stream_;
  EndWord word_, aborted_;
  cuda::DeviceBuffer abort_;  // zero: no abort
  std::optional<cuda::PinnedBuffer> list_;
  std::optional<cuda::DeviceBuffer> gpu_list_;
  std::uint64_t runs_ = 0;  // what the word holds after the last one
};

}  // namespace linkspan::bare
