// copy/captured_copy.hpp - a copy as a node of the user's CUDA graph: its list, gate and counts.
//
// On the path of a byte: each launch of the graph runs kernels/copy_captured.cu on the list,
// without a call of this library. The gate ends that: after close_gate() and is_quiet() no launch
// touches what the list names again, whenever the user launches the graph.
// Threads: externally synchronised; completed(), refused() and graph_has_ended() any thread.
// Invariants: the memory that the kernel reads lives until the graph has ended, also when the
// Engine ends before (keep_until_graph_ends()).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "copy/copier.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "cuda/topology.hpp"

namespace linkspan::copy {

class CapturedCopy {
 public:
  static constexpr std::size_t kMaxEntries = std::size_t{1} << 22;  ///< 96 MiB of the GPU's memory.

  /// OFF THE LOCK. Uploads the pieces, in entries of 64 KiB at most. `device` is one of `topology`
  /// and its kernels are loaded. unsupported: more than kMaxEntries.
  static Result<std::shared_ptr<CapturedCopy>> create(std::shared_ptr<cuda::Topology> topology,
                                                      const cuda::Device& device,
                                                      std::span<const Piece> pieces,
                                                      unsigned most_ctas);
  CapturedCopy(const CapturedCopy&) = delete;
  CapturedCopy& operator=(const CapturedCopy&) = delete;
  ~CapturedCopy();  ///< Requires graph_has_ended(), or that no graph got the node.

  /// Adds the node to the graph that the user's `stream` captures, and makes the graph own this:
  /// the caller keeps it until graph_has_ended(). On error no graph will launch it.
  Status record(const cuda::DeviceScope& scope, cuda::CUstream stream, cuda::CUgraph graph);
  /// Returns true once no graph, executable or launch with the node is left.
  bool graph_has_ended() const noexcept { return graph_ended_.load(std::memory_order_acquire); }

  /// Return the number of launches that have copied all pieces, visible to the caller, and of those
  /// that found the gate closed.
  std::uint64_t completed() const noexcept;
  std::uint64_t refused() const noexcept;

  /// Makes launches that begin from now on copy nothing, and running ones end early.
  void close_gate();
  /// Returns whether no launch copies, and none will. Asks the GPU, so the answer comes with a
  /// later call. Requires close_gate().
  bool is_quiet();

  /// Keeps the copy after the end of its Engine. The next call frees what has ended until then;
  /// null only does that.
  static void keep_until_graph_ends(std::shared_ptr<CapturedCopy> copy);

 private:
  struct CapturedMemory {
    cuda::DeviceBuffer device;  // the gate, then the list
    cuda::PinnedBuffer host;    // HostPart
    cuda::Stream stream;        // closes and reads the gate
  };
  struct HostPart;

  CapturedCopy(std::shared_ptr<cuda::Topology> topology, const cuda::Device& device,
               std::unique_ptr<CapturedMemory> owned, std::uint32_t entries, std::uint32_t ctas)
      : topology_(std::move(topology)),
        device_(device),
        memory_(std::move(owned)),
        entries_(entries),
        ctas_(ctas) {}
  HostPart& host() const noexcept;
  Status upload(const cuda::DeviceScope& scope, std::span<const Piece> entries);
  Status ask();

  const std::shared_ptr<cuda::Topology> topology_;  // also the Engine's, which may end before
  const cuda::Device& device_;
  std::unique_ptr<CapturedMemory> memory_;
  const std::uint32_t entries_, ctas_;
  std::uint64_t asked_ = 0;  // number of the last ask()
  Status last_ask_;
  bool quiet_ = false;
  std::atomic<bool> graph_ended_{false};
};

}  // namespace linkspan::copy
