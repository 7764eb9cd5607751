// copy/staging.hpp - pinned buffers through which bytes go between GPUs and what a GPU cannot
// reach: pageable memory, a socket.
//
// To a GPU: the owner acquires a buffer, fills and submits it, and the GPU copies from it. From a
// GPU: the owner submits the buffer and empties it when the GPU is done. The GPU's stream writes a
// flag in the buffer after the chunk, so the owner fills or empties one buffer while the GPU works
// on the others. The thread that uses a buffer pins it at its first chunk, on the NUMA node of the
// GPU that is served first, or on the thread's own if that is not known. Pinned buffers are kept
// until the end. A StagingStream is in use only while the GPU works on a buffer, so an owner that
// fills its buffers slowly does not block others.
// Threads: one executor's. Only calls of the driver may wait.
// Invariants: a buffer is reused only after its flag or its stream has shown that the GPU is done;
// a buffer that was in flight when a context was lost is never reused.
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

/// A pooled CUDA stream and what kernels on it need.
struct StagingStream {
  static Result<std::unique_ptr<StagingStream>> create(const cuda::Device& device);

  const cuda::Device* device;
  cuda::Stream cuda_stream;
  std::optional<cuda::DeviceBuffer> zero;  // abort flag of kernels, never set; empty: no kernel
};

/// A pool of streams for stagings, made ahead. Making a stream may wait for all that is in flight
/// on the GPU (fact: Held.MakingManyStreams), which may itself wait for the copy that needs the
/// stream.
/// Threads: any thread.
class StagingStreams {
 public:
  /// Makes an empty pool. `topology` must outlive it; its DeferredDestroyer frees the memory that
  /// ended stagings had pinned, because freeing waits for what is in flight on the GPU. Null: freed
  /// at once.
  explicit StagingStreams(cuda::Topology* topology = nullptr) : topology_(topology) {}

  /// Makes streams until there are `streams` of that GPU, those in use included. `device` must
  /// outlive the pool. OFF THE LOCK.
  Status reserve(const cuda::Device& device, unsigned streams) LINKSPAN_EXCLUDES(making_, mutex_);
  /// Brings up the GPU if needed and does the same. Requires a topology.
  Status reserve(const GpuUuid& gpu, unsigned streams) LINKSPAN_EXCLUDES(making_, mutex_);
  /// Returns a stream that is the caller's until release(). Makes and keeps a new one if all are in
  /// use.
  Result<StagingStream*> acquire(const cuda::Device& device) LINKSPAN_EXCLUDES(mutex_);
  /// Returns a stream to the pool. Requires: nothing is in flight on it.
  void release(const StagingStream& stream) noexcept LINKSPAN_EXCLUDES(mutex_);
  /// Frees the memory that an ended staging had pinned.
  void free(std::vector<cuda::PinnedBuffer> memory) noexcept;

 private:
  struct PooledStream {
    std::unique_ptr<StagingStream> stream;
    bool in_use = false;
  };
  Result<StagingStream*> add(const cuda::Device& device, bool in_use) LINKSPAN_EXCLUDES(mutex_);

  cuda::Topology* const topology_;
  base::Mutex making_;  // serialises reserve(), which counts and then makes
  base::Mutex mutex_;
  std::vector<PooledStream> all_ LINKSPAN_GUARDED_BY(mutex_);
};

/// Pinned memory for one chunk on its way to or from a GPU.
class StagingBuffer {
 public:
  unsigned index() const noexcept { return index_; }  ///< Below kBuffers.
  std::byte* at(std::size_t run) const;               ///< Returns where the bytes of that run are.
  std::span<std::byte> memory() const { return {memory_->data(), memory_->bytes()}; }
  const Status& status() const noexcept { return status_; }  ///< Valid once the GPU is done.

 private:
  friend class Staging;
  enum class StagingBufferState : std::uint8_t { free, acquired, submitted, done };
  bool has_completed() const noexcept;

  unsigned index_ = 0;
  StagingBufferState state_ = StagingBufferState::free;
  std::optional<cuda::PinnedBuffer> memory_;  // pinned at its first use
  const cuda::Device* device_ = nullptr;      // from acquire() to release()
  StagingStream* stream_ = nullptr;           // while it is submitted
  std::vector<Piece> runs_;
  bool to_gpu_ = false;
  unsigned ctas_ = 0;
  std::uint64_t number_ = 0;  // value of the flag when the GPU is done
  Status status_;             // of the submission
  base::Time begun_{}, next_query_{};
};

class Staging {
 public:
  /// Number of buffers. Two keep CPU and GPU busy, a third absorbs jitter. The fourth is reserved
  /// for a second GPU, so that a GPU whose SMs are occupied delays only its own copies.
  static constexpr unsigned kBuffers = 4, kBuffersPerGpu = 3;
  /// Maximum number of runs of a chunk. Without the kernel each run is a copy, and all buffers
  /// together must stay below what a stream takes (docs/cuda_notes.md, "queues").
  static constexpr std::size_t kRuns = 256;
  /// Default maximum of bytes in a buffer, chosen so that buffers stay in the caches between memcpy
  /// and the GPU; not measured.
  static constexpr std::size_t kMaxBytes = std::size_t{2} << 20;
  /// Upper limit of bytes in a buffer for any owner; the kernel's list has no room for more.
  static constexpr std::size_t kMaxBufferBytes = std::size_t{4} << 20;
  /// Size of what is in a buffer beside its bytes: flags, the kernel's list, gaps between runs.
  static constexpr std::size_t kOverheadBytes = 12u << 10;

  /// A range that is contiguous on the GPU and in the buffer.
  struct StagedRun {
    std::uint64_t gpu = 0, bytes = 0;
  };
  struct BufferRequest {
    const cuda::Device* device = nullptr;  ///< Outlives the Staging.
    std::span<const StagedRun> runs{};     ///< 1 to kRuns, at most buffer_bytes; read in acquire().
    bool to_gpu = false;
    unsigned ctas = 0;  ///< As Order::ctas.
  };

  /// Returns the bytes of a buffer for an executor that may pin `pinned` bytes; at least 4 KiB.
  static std::size_t buffer_bytes(std::size_t pinned) noexcept;

  /// Makes a Staging without buffers. `buffer_bytes` is at most kMaxBufferBytes; `streams` must
  /// outlive it.
  Staging(std::size_t buffer_bytes, StagingStreams& streams) noexcept;
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging();  ///< Requires: idle().

  /// Returns a buffer that is the caller's until release(). Requires room().
  Result<StagingBuffer*> acquire(const BufferRequest& chunk);
  /// Submits the buffer to a stream. On error, also when no stream is available, nothing is in
  /// flight and the buffer is released.
  Status submit(StagingBuffer& buffer);
  /// Returns a buffer that the GPU is done with, or null. Returns each once.
  StagingBuffer* next_done();
  /// Releases a buffer that is acquired but not submitted, or done.
  void release(StagingBuffer& buffer) noexcept;

  bool idle() const noexcept { return busy_ == 0; }  ///< No buffer is in use.
  /// Returns whether acquire() may be called for that GPU.
  bool room(const cuda::Device& device) const noexcept;
  /// Returns whether next_done() may return a buffer.
  bool ready() const noexcept;
  /// Returns how long to do other work before the next next_done(): zero at first, then ever
  /// longer.
  Duration patience() const noexcept;

 private:
  using StagingBufferState = StagingBuffer::StagingBufferState;
  struct SubmittedWork {
    unsigned entries = 0;  // of the stream
    bool has_flag = false;
  };

  Result<StagingStream*> acquire_stream(const cuda::Device& device);
  void release_stream(StagingBuffer& buffer) noexcept;
  Status pin(StagingBuffer& buffer, const cuda::Device& device, const cuda::DeviceScope& scope);
  Status start(StagingBuffer& buffer, SubmittedWork& work);
  bool query_stream(StagingBuffer& buffer, base::Time now);

  const std::size_t buffer_bytes_;
  StagingStreams& streams_;
  std::vector<cuda::PinnedBuffer> leaked_;  // a lost context may still use them
  std::array<StagingBuffer, kBuffers> buffers_;
  unsigned busy_ = 0;
};

}  // namespace linkspan::copy
