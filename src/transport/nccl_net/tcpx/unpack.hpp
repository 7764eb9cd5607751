// transport/nccl_net/tcpx/unpack.hpp - moves received data from a bounce pool to its destination.
//
// Three methods give the same bytes. `kernel`: one launch for all fragments of many receives, by a
// list in pinned memory. `d2d`: one copy for each fragment. `host`: one copy for each fragment into
// pinned memory, then one back for each contiguous run. begin() submits work to this Unpacker's
// CUDA stream; its end is a number that the stream writes to pinned memory. Until poll() has
// reported the end the pool is being read: the plugin must not be told that the receive was
// consumed, and tokens must not be returned.
// Threads: externally synchronised; create() and the destructor take driver locks and milliseconds.
// Invariants: batches end in the order of their begin. What the stream has no room for, poll()
// submits later. All pinned memory is allocated in create().
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/clock.hpp"
#include "cuda/memory.hpp"
#include "cuda/topology.hpp"
#include "transport/nccl_net/options.hpp"
#include "transport/nccl_net/tcpx/marked_stream.hpp"
#include "transport/nccl_net/tcpx/rx_descriptor.hpp"

namespace linkspan::transport::nccl_net::tcpx {

/// Returns the method that `option` names, else `set`, else `fallback`.
/// invalid_argument: `option` is unknown; the text lists the known ones.
Result<Unpack> choose_unpack(std::string_view option, std::optional<Unpack> set, Unpack fallback);

/// Describes one receive to unpack. No two receives of a batch may share a destination byte.
struct UnpackRequest {
  const DescriptorBlock* block = nullptr;  ///< Read during begin() only.
  cuda::CUdeviceptr bounce = 0;            ///< First byte of the pool.
  cuda::CUdeviceptr destination = 0;  ///< Where offset 0 of the receive goes; writable by the GPU.
};

/// Requires at its end: all batches are quiet, or the process is ending.
class Unpacker {
 public:
  using UnpackId = std::uint64_t;  ///< Names a batch until poll() has reported its end. Never zero.

  static constexpr std::size_t kBatches = 4;    ///< In flight at once.
  static constexpr std::size_t kRequests = 32;  ///< Maximum of a batch.
  /// Bounds the entries of a batch after splitting: at 64 KiB for the kernel, at kMaxCopy for the
  /// other methods.
  static constexpr std::size_t kEntries = kRequests * (kMaxFragments + 128);
  static constexpr std::uint64_t kMaxCopy = std::uint64_t{8} << 20;
  /// Maximum of a batch of `host`.
  static constexpr std::uint64_t kHostBytes = std::uint64_t{16} << 20;

  struct KernelBounds {
    std::optional<unsigned> ctas{};  ///< Maximum of a kernel. None: all that run at once.
  };
  /// Creates an Unpacker. `device` outlives it. unsupported: `kernel` where kernels do not load or
  /// may use no CTA.
  static Result<std::unique_ptr<Unpacker>> create(const cuda::Device& device, Unpack method,
                                                  const KernelBounds& bounds,
                                                  const base::Clock& clock = base::Clock::steady());

  Unpack method() const noexcept { return method_; }
  /// Begins a batch whose receives the plugin's test() has completed. no_resource: kBatches are in
  /// flight, poll() frees them. invalid_argument: more than a batch takes. After an error nothing
  /// is in flight.
  Result<UnpackId> begin(std::span<const UnpackRequest> requests);
  /// Returns a batch's end, once; none while it runs. After it nothing reads its pools or writes
  /// its destinations, and later work sees the bytes.
  std::optional<Status> poll(UnpackId id);
  /// Returns when poll() may have news. Time::max(): nothing is in flight.
  base::Time expected(base::Time now) const;

 private:
  /// Read by kernels/unpack.cu.
  struct UnpackEntry {
    std::uint32_t from;  // offset in the pool
    std::uint32_t bytes : 24, pool : 8;
    std::uint64_t to;
  };
  static_assert(sizeof(UnpackEntry) == 16 && kRequests <= 256 && kMaxCopy < 1u << 24);
  /// Describes what `host` copies from its pinned memory to a destination.
  struct Run {
    std::uint64_t staged, bytes;
    cuda::CUdeviceptr to;
  };
  struct UnpackBatch {
    UnpackId id = 0;                 // 0: free
    std::span<UnpackEntry> entries;  // in pinned memory, as `staging`
    std::byte* staging = nullptr;
    std::array<cuda::CUdeviceptr, kRequests> pools{};
    std::vector<Run> runs;
    std::size_t steps = 0, begun = 0;  // all; those submitted to the stream
    MarkedStream::Mark mark = 0;       // written after the last step
    Status status{};
    base::Time due{}, polled_at{};
  };

  Unpacker(const cuda::Device& device, Unpack method, unsigned ctas, const base::Clock& clock,
           cuda::PinnedBuffer memory, MarkedStream stream);
  UnpackBatch& of(UnpackId id) { return batches_[id % kBatches]; }
  Result<std::uint64_t> check(std::span<const UnpackRequest> requests) const;
  void lay_out(UnpackBatch& batch, std::span<const UnpackRequest> requests,
               std::uint64_t cut) const;
  std::uint64_t cut_of(std::span<const UnpackRequest> requests) const;
  void feed();  // Submits what the stream has space for.
  Status feed(
      UnpackBatch& batch);  // Submits some steps and a mark, or nothing if there is no space.
  Status step(const cuda::DeviceScope& scope, const UnpackBatch& batch, std::size_t number) const;
  Status launch(const cuda::DeviceScope& scope, const UnpackBatch& batch) const;
  void poll_stream();
  void fail(const Status& cause);
  bool quiet(const UnpackBatch& batch) const noexcept {
    return batch.id <= fed_ && stream_.reached(batch.mark);
  }

  const cuda::Device& device_;
  const Unpack method_;
  const unsigned ctas_;
  const base::Clock& clock_;
  Status failure_;               // why the context failed
  UnpackId last_ = 0, fed_ = 0;  // begun; wholly submitted
  base::Time last_due_{};
  cuda::PinnedBuffer memory_;  // the completed mark, lists, staging memory
  std::array<UnpackBatch, kBatches> batches_;
  MarkedStream stream_;  // last member: it ends before what it writes to
};

}  // namespace linkspan::transport::nccl_net::tcpx
