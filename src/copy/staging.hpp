// copy/staging.hpp - pinned buffers through which bytes go between GPUs and what a GPU cannot
// reach: pageable memory, a socket.
//
// To a GPU: the owner takes a buffer, fills it and submits it; the GPU takes the bytes from there
// in stream order. From a GPU: it submits the buffer and empties it when the GPU is done. A flag in
// the buffer, written behind the chunk, tells of the GPU's part, so that the owner fills or empties
// one buffer while the GPU works at the others. The buffers are pinned by the thread that uses
// them, at its first chunks: they lie on the NUMA node of the GPU that has the first, or on the
// thread's where that is not known, and are the only memory of this path for good. A stream is held
// while the GPU works at a buffer, and no longer: who fills buffers slowly holds up nobody else.
// Threads: of one executor. Nothing here waits but the driver's own calls.
// Invariants: a buffer is used again only when its flag, or its stream, has has_completed that the
// GPU is done with it; what was in flight when a context was lost is never used again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.hpp"
#include "copy/copier.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "cuda/topology.hpp"

namespace linkspan::copy {

/// A CUDA stream that stagings submit to, and what its kernels need.
struct StagingStream {
  static Result<std::unique_ptr<StagingStream>> create(const cuda::Device& device);

  const cuda::Device* device;
  cuda::Stream cuda_stream;
  std::optional<cuda::DeviceBuffer> zero;  // the kernel's abort flag, which nobody sets
};

/// A pool of what stagings submit to, made ahead: to make a stream may wait for all that is in
/// flight on the GPU (fact: Held.MakingManyStreams), and that may wait for the copy which needs it.
/// Threads: any thread.
class StagingStreams {
 public:
  /// `topology` outlives it; its DeferredDestroyer frees what stagings have pinned when they end,
  /// for that waits for what is in flight on the GPU. Null: they free it themselves.
  explicit StagingStreams(cuda::Topology* topology = nullptr) : topology_(topology) {}

  /// OFF THE LOCK. At least so many of that GPU, which outlives them, with those that are in_use.
  Status reserve(const cuda::Device& device, unsigned streams) LINKSPAN_EXCLUDES(making_, mutex_);
  /// The same, of one that may not be up yet. Requires a topology.
  Status reserve(const GpuUuid& gpu, unsigned streams) LINKSPAN_EXCLUDES(making_, mutex_);
  /// The taker's until release(). One is made where all are in_use, and kept.
  Result<StagingStream*> acquire(const cuda::Device& device) LINKSPAN_EXCLUDES(mutex_);
  /// Requires: nothing is in flight there.
  void release(const StagingStream& stream) noexcept LINKSPAN_EXCLUDES(mutex_);
  /// Frees what a staging had pinned that ends.
  void free(std::vector<cuda::PinnedBuffer> memory) noexcept;

 private:
  struct PooledStream {
    std::unique_ptr<StagingStream> stream;
    bool in_use = false;
  };
  Result<StagingStream*> add(const cuda::Device& device, bool in_use) LINKSPAN_EXCLUDES(mutex_);

  cuda::Topology* const topology_;
  base::Mutex making_;  // one reserve() at a time: it counts and then makes
  base::Mutex mutex_;
  std::vector<PooledStream> all_ LINKSPAN_GUARDED_BY(mutex_);
};

/// Pinned memory for one chunk.
class StagingBuffer {
 public:
  unsigned index() const noexcept { return index_; }  ///< Below kBuffers.
  std::byte* at(std::size_t run) const;               ///< Where the bytes of that run lie.
  std::span<std::byte> memory() const { return {memory_->data(), memory_->bytes()}; }
  const Status& status() const noexcept { return status_; }  ///< Once the GPU is done.

 private:
  friend class Staging;
  enum class State : std::uint8_t { free, acquired, submitted, done };
  bool has_completed() const noexcept;

  unsigned index_ = 0;
  State state_ = State::free;
  std::optional<cuda::PinnedBuffer> memory_;  // from its first use on
  const cuda::Device* device_ = nullptr;      // from acquire() to release()
  StagingStream* stream_ = nullptr;           // while it is submitted
  std::vector<Piece> runs_;
  bool to_gpu_ = false;
  unsigned ctas_ = 0;
  std::uint64_t number_ = 0;  // what its flag is to tell
  Status status_;             // of the submission
  base::Time begun_{}, next_query_{};
};

class Staging {
 public:
  /// Two keep the thread and its GPU busy; a third takes up what either is late. The last is for
  /// another GPU: one that stands still, its SMs in_use by a kernel of the user's, holds up itself.
  static constexpr unsigned kBuffers = 4, kBuffersPerGpu = 3;
  /// Of one chunk at most. Without the kernel each is a copy, and all buffers together stay below
  /// what a stream takes (docs/cuda_notes.md, "queues").
  static constexpr std::size_t kRuns = 256;
  /// So that buffers stay in the caches between memcpy and the GPU; at a guess, not measured.
  static constexpr std::size_t kMaxBytes = std::size_t{2} << 20;
  /// Of a buffer whatever its owner wants: more the kernel's list does not name.
  static constexpr std::size_t kMaxBufferBytes = std::size_t{4} << 20;
  /// Beside the bytes of a buffer: its words, the kernel's list, and what is left free between
  /// runs.
  static constexpr std::size_t kOverheadBytes = 12u << 10;

  /// Contiguous on the GPU, and in the buffer.
  struct StagedRun {
    std::uint64_t gpu = 0, bytes = 0;
  };
  struct BufferRequest {
    const cuda::Device* device = nullptr;  ///< Outlives this.
    std::span<const StagedRun> runs{};  ///< 1 to kRuns, of buffer_bytes at most; read in acquire().
    bool to_gpu = false;
    unsigned ctas = 0;  ///< As Order::ctas.
  };

  /// What a buffer takes where a thread may pin so much; at least 4 KiB.
  static std::size_t buffer_bytes(std::size_t pinned) noexcept;

  /// `buffer_bytes`: kMaxBufferBytes at most. `streams` outlives it.
  Staging(std::size_t buffer_bytes, StagingStreams& streams) noexcept;
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging();  ///< Requires: idle().

  /// The caller's until release(). Requires room().
  Result<StagingBuffer*> acquire(const BufferRequest& chunk);
  /// An error, also of a stream that is not to be had: nothing is in flight, the buffer is given
  /// back.
  Status submit(StagingBuffer& buffer);
  /// One that the GPU is done with, if there is any; once each.
  StagingBuffer* next_done();
  /// Of one that is in_use and not submitted, or done.
  void release(StagingBuffer& buffer) noexcept;

  bool idle() const noexcept { return busy_ == 0; }  ///< No buffer is in_use.
  bool room(const cuda::Device& device) const noexcept;
  /// next_done() has news, perhaps.
  bool ready() const noexcept;
  /// How long to do something else before next_done(): at first not at all, then ever longer.
  Duration patience() const noexcept;

 private:
  using State = StagingBuffer::State;

  Result<StagingStream*> acquire_stream(const cuda::Device& device);
  void release_stream(StagingBuffer& buffer) noexcept;
  Status pin(StagingBuffer& buffer, const cuda::Device& device, const cuda::DeviceScope& scope);
  static unsigned start(StagingBuffer& buffer,
                        const cuda::DeviceScope& scope);  // how much is in flight
  bool query_stream(StagingBuffer& buffer, base::Time now);

  const std::size_t buffer_bytes_;
  StagingStreams& streams_;
  std::vector<cuda::PinnedBuffer> leaked_;  // a GPU may have them in its hands for ever
  std::array<StagingBuffer, kBuffers> buffers_;
  unsigned busy_ = 0;
};

}  // namespace linkspan::copy
