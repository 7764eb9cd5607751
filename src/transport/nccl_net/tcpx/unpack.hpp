// transport/nccl_net/tcpx/unpack.hpp - moves what receives have left in a bounce pool to where it
// belongs.
//
// Three ways give the same bytes: `kernel` (one launch for all fragments of many receives, as the
// list in pinned memory says), `d2d` (a copy for each fragment) and `host` (a copy for each into
// pinned memory, which gathers them, and one back for each contiguous run). begin() puts work into
// a stream of this Unpacker's; the end is a number in pinned memory, written in stream order. Only
// when poll() has told it may the plugin hear that the receive was consumed, and tokens go back:
// until then the pool is read.
// Threads: externally synchronised; create() and the destructor take driver locks and milliseconds.
// Invariants: batches end in the order of their begin; a stream never holds more than
// kStreamEntries (of d2d and host poll() brings the rest), so nothing blocks in the driver; all
// pinned memory is made in create().
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/clock.hpp"
#include "base/options.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "cuda/topology.hpp"
#include "transport/nccl_net/tcpx/rx_descriptor.hpp"

namespace linkspan::transport::nccl_net::tcpx {

/// What `option` says; where it is empty what the environment says, where that is silent
/// `fallback`. invalid_argument: `option` is none that is known, with a list of those.
Result<base::Unpack> choose_unpack(std::string_view option, const base::Options& options,
                                   base::Unpack fallback);

/// One receive. A destination is what DescriptorBlock's offsets count from, and no byte of two
/// receives of a batch may be the same.
struct UnpackRequest {
  const DescriptorBlock* block = nullptr;  ///< Read during begin() only.
  cuda::CUdeviceptr bounce = 0;            ///< Where the pool begins.
  cuda::CUdeviceptr destination = 0;       ///< What the GPU can write.
  std::byte* host =
      nullptr;  ///< Instead of a destination, `host` only: any memory of this process.
};

class Unpacker {
 public:
  using UnpackId = std::uint64_t;  ///< Names one batch until poll() has told its end. Never zero.

  static constexpr std::size_t kBatches = 4;    ///< In flight.
  static constexpr std::size_t kRequests = 32;  ///< Of a batch.
  /// Of a batch, counted after the cut: 64 KiB for the kernel, kMaxCopy for the others.
  static constexpr std::size_t kEntries = kRequests * (kMaxFragments + 128);
  static constexpr std::uint64_t kMaxCopy = std::uint64_t{8} << 20;
  static constexpr std::uint64_t kHostBytes = std::uint64_t{16} << 20;  ///< Of a batch of `host`.
  /// CUDA's stream takes about 1021 and then blocks its caller (docs/cuda_notes.md, "queues").
  static constexpr unsigned kStreamEntries = 512;

  struct Bounds {
    std::optional<unsigned> ctas{};  ///< Of a kernel at most. None: all that run at once.
  };
  /// `device` outlives it. unsupported: `kernel` where the kernels do not load, or may take no CTA.
  static Result<std::unique_ptr<Unpacker>> create(const cuda::Device& device, base::Unpack method,
                                                  const Bounds& bounds,
                                                  const base::Clock& clock = base::Clock::steady());
  /// Requires: all batches are quiet, or the process is ending.
  ~Unpacker() = default;
  Unpacker(const Unpacker&) = delete;
  Unpacker& operator=(const Unpacker&) = delete;

  base::Unpack method() const noexcept { return method_; }
  /// What the plugin has received must be in the pool: its test() has said so. no_resource:
  /// kBatches are in flight, ends come by poll(). invalid_argument: more than a batch takes, or a
  /// destination that this way does not reach. After any error nothing is in flight.
  Result<UnpackId> begin(std::span<const UnpackRequest> requests);
  /// The end of a batch, once: nothing reads its pools or writes its destinations any more, and
  /// what runs later sees the bytes. Nothing while it runs. `host` copies into host memory here.
  std::optional<Status> poll(UnpackId id);
  /// When poll() may have news, at the earliest. Time::max(): nothing is in flight.
  base::Time expected(base::Time now) const;

 private:
  /// As kernels/unpack.cu reads it.
  struct Entry {
    std::uint32_t from;  // in the pool
    std::uint32_t bytes : 24, pool : 8;
    std::uint64_t to;
  };
  static_assert(sizeof(Entry) == 16 && kRequests <= 256 && kMaxCopy < 1u << 24);
  /// Of `host`: what goes from its pinned memory to a destination.
  struct Run {
    std::uint64_t staged, bytes;
    cuda::CUdeviceptr to;
    std::byte* host;  // instead
  };
  struct Batch {
    UnpackId id = 0;  // zero: free
    Entry* list = nullptr;
    cuda::CUdeviceptr list_device = 0;
    std::byte* staging = nullptr;
    cuda::CUdeviceptr staging_device = 0;
    std::array<cuda::CUdeviceptr, kRequests> pools{};
    std::uint32_t entries = 0;
    std::vector<Run> runs, host_runs;  // by the stream; by poll()
    std::size_t steps = 0, begun = 0;  // of the stream: all, and those that are there
    std::uint64_t mark = 0;            // the one behind the last step
    Status status{};
    base::Time due{}, polled_at{};
  };

  Unpacker(const cuda::Device& device, base::Unpack method, unsigned ctas, const base::Clock& clock,
           cuda::PinnedBuffer memory, cuda::Stream stream);
  Batch& of(UnpackId id) { return batches_[id % kBatches]; }
  Result<std::uint64_t> check(std::span<const UnpackRequest> requests) const;
  void lay_out(Batch& batch, std::span<const UnpackRequest> requests, std::uint64_t cut) const;
  std::uint64_t cut_of(std::span<const UnpackRequest> requests) const;
  void feed();                // puts into the stream what has room there
  Status feed(Batch& batch);  // some steps and a mark, or nothing where there is no room
  Status step(const cuda::DeviceScope& scope, const Batch& batch, std::size_t number) const;
  Status launch(const cuda::DeviceScope& scope, const Batch& batch) const;
  void poll();  // how far the stream is
  void fail(const Status& cause);
  bool quiet(const Batch& batch) const noexcept;

  const cuda::Device& device_;
  const base::Unpack method_;
  const unsigned ctas_;
  const base::Clock& clock_;
  Status failure_;                         // why the context is gone
  UnpackId last_ = 0, fed_ = 0;            // begun; wholly in the stream
  std::uint64_t marks_ = 0, reached_ = 0;  // written by the stream; of these seen
  std::deque<unsigned> between_;           // entries of the stream for each mark not yet seen
  unsigned in_stream_ = 0;                 // their sum
  base::Time ask_at_{}, last_due_{};
  cuda::PinnedBuffer memory_;  // the word of the marks, lists, staging
  std::array<Batch, kBatches> batches_;
  cuda::Stream stream_;  // last: it ends before what it writes to
};

}  // namespace linkspan::transport::nccl_net::tcpx
