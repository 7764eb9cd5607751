// tools/linkspan/ceiling.hpp - the bare call that a pair of memories is measured against.
//
// Between GPUs and from a GPU to a GPU of the peer it moves the very same bytes, over a CUDA IPC
// mapping that bare code opened. Where only the peer can reach its memory (pinned, pageable), the
// bare call runs in this process, on memory of the same kind of our own.
// Threads: externally synchronised.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bench/bare/cpu_copy.hpp"
#include "bench/bare/gpu_copy.hpp"
#include "cuda/handles.hpp"
#include "linkspan/types.hpp"
#include "tools/linkspan/far_end.hpp"
#include "tools/linkspan/memories.hpp"

namespace linkspan::tool {

/// A memory of the second process as all parts of the tool know it.
struct Far {
  Place place;
  FarMemory memory;
  RemoteRegion region;
};

class Ceiling {
 public:
  /// `how` in words, for the report.
  const std::string& how() const noexcept { return how_; }
  /// `depth` copies side by side, of which none waits for another's end to be seen.
  Result<Duration> run(std::uint64_t bytes, unsigned depth);

 private:
  friend class Ceilings;
  Ceiling() = default;
  Result<Duration> run_cpu(std::uint64_t offset, std::uint64_t bytes);

  std::string how_;
  std::optional<cuda::IpcMapping> mapping_;
  bare::GpuCopy* gpu_ = nullptr;  // else by the CPU
  bare::CpuCopy* cpu_ = nullptr;
  std::uint64_t to_ = 0, from_ = 0;
  pid_t across_ = 0;  // the process of the far end, for process_vm_*
  bool read_ = false;
};

/// Makes them; owns the streams and threads that they share. Memories and GPUs outlive it.
class Ceilings {
 public:
  using Memories = std::map<std::string, std::unique_ptr<Memory>>;

  Ceilings(const Gpus& gpus, const Memories& ours, pid_t far_pid, unsigned threads)
      : gpus_(gpus), ours_(ours), far_pid_(far_pid), threads_(threads), cpu_(threads) {}

  /// `path` is Explanation::path: a pageable copy is held against a pageable one.
  Result<Ceiling> make(Op op, const Memory& local, const Far& far, const std::string& path);

 private:
  Status by_gpu(Ceiling& out, Op op, const Memory& local, const Far& far, bool pageable);
  Status by_cpu(Ceiling& out, Op op, const Memory& local, const Far& far);
  Result<bare::GpuCopy*> copy_of(const cuda::Device& device);
  const Memory& our(Place place) const { return *ours_.at(place.name()); }

  const Gpus& gpus_;
  const Memories& ours_;
  const pid_t far_pid_;
  const unsigned threads_;
  bare::CpuCopy cpu_;
  std::map<const cuda::Device*, std::unique_ptr<bare::GpuCopy>> copies_;
};

}  // namespace linkspan::tool
