// bench/bare/staged_copy.hpp - the least that a copy between a GPU and pageable memory can cost:
// the ceiling.
//
// Each thread has its own pinned slots and its own stream. It takes a chunk, moves it by memcpy on
// one side of a slot and by cuMemcpyAsync on the other, and takes the next; its slots overlap.
// Threads: externally synchronised. Its threads live as long as it does.
// Invariants: the Device outlives it.
#pragma once

#include <array>
#include <atomic>
#include <barrier>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "bench/bare/end_word.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "cuda/topology.hpp"

namespace linkspan::bare {

class StagedCopy {
 public:
  /// Starts `threads` threads with kSlots staging buffers of `slot_bytes` bytes each.
  static Result<std::unique_ptr<StagedCopy>> create(const cuda::Device& device, unsigned threads,
                                                    std::uint64_t slot_bytes);
  ~StagedCopy();
  StagedCopy(const StagedCopy&) = delete;
  StagedCopy& operator=(const StagedCopy&) = delete;

  /// From the call until the last byte is where it should be. timed_out: as GpuCopy::run().
  Result<Duration> run(bool to_gpu, cuda::CUdeviceptr gpu, std::byte* host, std::uint64_t bytes,
                       Duration limit);

 private:
  static constexpr std::size_t kSlots = 4;
  struct Lane {
    cuda::Stream stream;
    cuda::PinnedBuffer slots;
    EndWord word;
    std::uint64_t sent = 0;  // what the word holds after the last copy
    Status status{};
  };
  /// Describes one run. Null `host`: the threads end.
  struct Job {
    bool to_gpu = false;
    cuda::CUdeviceptr gpu = 0;
    std::byte* host = nullptr;
    std::uint64_t bytes = 0;
    Clock::time_point limit{};
  };

  StagedCopy(const cuda::Device& device, std::uint64_t slot_bytes, std::vector<Lane> lanes);
  void serve(Lane& lane);
  Status work(Lane& lane);
  Status issue(const cuda::DeviceScope& scope, Lane& lane, std::uint64_t offset);

  const cuda::Device& device_;
  const std::uint64_t slot_bytes_;
  std::vector<Lane> lanes_;
  Job job_;                             // between the barriers the threads' to read
  std::atomic<std::uint64_t> next_{0};  // the first byte that no one has taken
  std::barrier<> begin_, end_;          // of a run: the threads and the caller
  std::vector<std::jthread> threads_;   // last: they use all of the above
};

}  // namespace linkspan::bare
