// tools/linkspan/measure/reference_copies.hpp - the bare copies that the transfers of a pair are
// measured against.
//
// If a GPU reaches both memories, a bare copy moves the same bytes over a CUDA IPC mapping of its
// own. If only the peer can reach its memory (pinned, pageable), the copy runs in this process, on
// memory of the same kind.
// Threads: externally synchronised.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench/bare/cpu_copy.hpp"
#include "bench/bare/gpu_copy.hpp"
#include "bench/bare/kernel_copy.hpp"
#include "bench/bare/relay_copy.hpp"
#include "bench/bare/staged_copy.hpp"
#include "cuda/handles.hpp"
#include "linkspan/types.hpp"
#include "tools/linkspan/measure/alternation.hpp"
#include "tools/linkspan/pair/helper_process.hpp"
#include "tools/linkspan/pair/memories.hpp"
#include "tools/linkspan/pair/shape.hpp"

namespace linkspan::tool {

/// A memory of the second process.
struct RemoteMemory {
  Place place;
  ExportedMemory memory;
  RemoteRegion region;
};

/// Two memories, and whether this process writes or reads.
struct Pair {
  Op op;
  Memory& local;
  const RemoteMemory& remote;

  bool to_remote() const noexcept { return op == Op::write; }
  Place from() const noexcept { return to_remote() ? local.place() : remote.place; }
  Place to() const noexcept { return to_remote() ? remote.place : local.place(); }
};

/// Selects the bare copies that a row is compared with. Many pieces: one kernel, or none.
enum class Against : std::uint8_t {
  usual,   ///< The copy engine and a flag; for host memory, threads.
  sync,    ///< `usual`, and cuStreamSynchronize instead of the flag: the faster one counts.
  staged,  ///< Pageable memory and a GPU: threads with pinned slots; the driver's own copy beside.
  ready,   ///< Pages by one kernel whose lists lie in mapped memory since its first run,
  ready_on_gpu,  ///< or in memory of its GPU.
  captured,      ///< One kernel as the node of a CUDA graph, launched kLaunches times.
  two_links      ///< Pinned memory to a GPU of the peer, half of it through another GPU.
};

/// Launches of a CUDA graph that are timed together.
inline constexpr unsigned kLaunches = 1000;

/// Source and destination of a bare copy by a GPU.
struct Route {
  const cuda::Device* device = nullptr;
  std::uint64_t to = 0, from = 0;
  std::optional<cuda::IpcMapping> mapping{};

  bare::Way addresses() const noexcept { return {to, from}; }
};

/// Makes the contestants, and owns the streams and threads that they share. The memories and GPUs
/// outlive it.
class ReferenceCopies {
 public:
  using Memories = std::map<std::string, std::unique_ptr<Memory>>;

  ReferenceCopies(const Gpus& gpus, const Memories& ours, pid_t far_pid, unsigned threads)
      : gpus_(gpus), ours_(ours), far_pid_(far_pid), threads_(threads), cpu_(threads) {}

  /// Returns the contestants for a row, empty if no bare copy is comparable. `path` is
  /// Explanation::path: pageable copies are compared with pageable ones. They are valid while this
  /// object and `layout` live.
  Result<std::vector<Contestant>> make(const Pair& pair, const Layout& layout, unsigned depth,
                                       Against against, const std::string& path);
  /// Returns one kernel that copies the pages of all pairs, by a list in memory of its GPU. All
  /// memories are of GPUs.
  Result<std::vector<Contestant>> over_regions(std::span<const Pair> pairs, const Layout& layout);
  /// Returns two simultaneous copies, each by the GPU on this side; reported beside the ceiling.
  Result<std::vector<Contestant>> both_ways(std::span<const Pair> pairs, std::uint64_t bytes);
  /// Returns the addresses for bare code. Host memory that only the peer reaches is replaced by
  /// this process's `host`.
  Result<Route> route(const Pair& pair, Place host) const;

 private:
  using Contestants = Result<std::vector<Contestant>>;
  Contestants by_gpu(const Pair& pair, const Layout& layout, unsigned depth, Against against,
                     Place host);
  Contestants by_copies(std::shared_ptr<const Route> route, std::uint64_t bytes, unsigned depth,
                        Against against, const std::string& where);
  Result<bare::KernelCopy*> kernel_of(const cuda::Device& device);
  Contestants by_kernel(const std::shared_ptr<const Route>& route, const Layout& layout,
                        Against against, const std::string& where);
  Contestants by_graph(const std::shared_ptr<const Route>& route,
                       std::span<const bare::KernelPiece> pieces, const std::string& where);
  Contestants by_staging(std::shared_ptr<const Route> route, std::uint64_t bytes, bool to_gpu,
                         const std::string& where);
  Contestants by_two_links(std::shared_ptr<const Route> route, const RemoteMemory& far,
                           std::uint64_t bytes, const std::string& where);
  Contestants by_cpu(const Pair& pair, const Layout& layout, unsigned depth);
  const Memory& our(Place place) const { return *ours_.at(place.name()); }

  const Gpus& gpus_;
  const Memories& ours_;
  const pid_t far_pid_;
  const unsigned threads_;
  bare::CpuCopy cpu_;
  std::map<const cuda::Device*, std::unique_ptr<bare::GpuCopy>> copies_;
  std::map<const cuda::Device*, std::unique_ptr<bare::KernelCopy>> kernels_;
  std::map<const cuda::Device*, std::unique_ptr<bare::RelayCopy>> relays_;
  using StagedKey =
      std::pair<const cuda::Device*, std::uint64_t>;  // and the bytes of a staging buffer
  std::map<StagedKey, std::unique_ptr<bare::StagedCopy>> staged_;
};

}  // namespace linkspan::tool
