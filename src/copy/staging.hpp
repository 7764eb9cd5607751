// copy/staging.hpp - pinned slots through which bytes go between GPUs and what a GPU cannot reach:
// pageable memory, a socket.
//
// To a GPU: the owner takes a slot, fills it and submits it; the GPU takes the bytes from there in
// stream order. From a GPU: it submits the slot and empties it when the GPU is done. A word in the
// slot, written behind the chunk, tells of the GPU's part, so that the owner fills or empties one
// slot while the GPU works at the others. The slots are pinned by the thread that uses them, at its
// first chunks: they lie on the NUMA node of the GPU that has the first, or on the thread's where
// that is not known, and are the only memory of this path for good. A lane is held while the GPU
// works at a slot, and no longer: who fills slots slowly holds up nobody else.
// Threads: of one executor. Nothing here waits but the driver's own calls.
// Invariants: a slot is used again only when its word, or its stream, has told that the GPU is done
// with it; what was in flight when a context was lost is never used again.
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

/// A pool of what stagings submit to, made ahead: to make a stream may wait for all that is in
/// flight on the GPU (fact: Held.MakingManyStreams), and that may wait for the copy which needs it.
/// Threads: any thread.
class StagingStreams {
 public:
  struct Lane {
    static Result<std::unique_ptr<Lane>> create(const cuda::Device& device);

    const cuda::Device* device;
    cuda::Stream stream;
    std::optional<cuda::DeviceBuffer> zero;  // the kernel's abort word, which nobody sets
  };

  /// `topology` outlives it; its DeferredDestroyer frees what stagings have pinned when they end,
  /// for that waits for what is in flight on the GPU. Null: they free it themselves.
  explicit StagingStreams(cuda::Topology* topology = nullptr) : topology_(topology) {}

  /// OFF THE LOCK. At least so many of that GPU, which outlives them, with those that are taken.
  Status reserve(const cuda::Device& device, unsigned lanes) LINKSPAN_EXCLUDES(making_, mutex_);
  /// The same, of one that may not be up yet. Requires a topology.
  Status reserve(const GpuUuid& gpu, unsigned lanes) LINKSPAN_EXCLUDES(making_, mutex_);
  /// The taker's until release(). One is made where all are taken, and kept.
  Result<Lane*> take(const cuda::Device& device) LINKSPAN_EXCLUDES(mutex_);
  /// Requires: nothing is in flight there.
  void release(const Lane& lane) noexcept LINKSPAN_EXCLUDES(mutex_);
  /// Frees what a staging had pinned that ends.
  void free(std::vector<cuda::PinnedBuffer> memory) noexcept;

 private:
  struct Entry {
    std::unique_ptr<Lane> lane;
    bool taken = false;
  };
  Result<Lane*> add(const cuda::Device& device, bool taken) LINKSPAN_EXCLUDES(mutex_);

  cuda::Topology* const topology_;
  base::Mutex making_;  // one reserve() at a time: it counts and then makes
  base::Mutex mutex_;
  std::vector<Entry> all_ LINKSPAN_GUARDED_BY(mutex_);
};

class Staging {
 public:
  /// Two keep the thread and its GPU busy; a third takes up what either is late. The last is for
  /// another GPU: one that stands still, its SMs taken by a kernel of the user's, holds up itself.
  static constexpr unsigned kSlots = 4, kSlotsOfAGpu = 3;
  /// Of one chunk at most. Without the kernel each is a copy, and all slots together stay below
  /// what a stream takes (docs/cuda_notes.md, "queues").
  static constexpr std::size_t kRuns = 256;
  /// So that slots stay in the caches between memcpy and the GPU; at a guess, not measured.
  static constexpr std::size_t kMaxBytes = std::size_t{2} << 20;
  /// Of a slot whatever its owner wants: more the kernel's list does not name.
  static constexpr std::size_t kMaxSlot = std::size_t{4} << 20;
  /// Beside the bytes of a slot: its words, the kernel's list, and what is left free between runs.
  static constexpr std::size_t kBeside = 12u << 10;

  /// Contiguous on the GPU, and in the slot.
  struct Run {
    std::uint64_t gpu = 0, bytes = 0;
  };
  struct Chunk {
    const cuda::Device* device = nullptr;  ///< Outlives this.
    std::span<const Run> runs{};           ///< 1 to kRuns, of slot_bytes at most; read in take().
    bool to_gpu = false;
    unsigned ctas = 0;  ///< As Order::ctas.
  };

  class Slot {
   public:
    unsigned index() const noexcept { return index_; }  ///< Below kSlots.
    std::byte* at(std::size_t run) const;               ///< Where the bytes of that run lie.
    std::span<std::byte> memory() const { return {memory_->data(), memory_->bytes()}; }
    const Status& status() const noexcept { return status_; }  ///< Once the GPU is done.

   private:
    friend class Staging;
    enum class State : std::uint8_t { free, taken, submitted, done };
    bool told() const noexcept;

    unsigned index_ = 0;
    State state_ = State::free;
    std::optional<cuda::PinnedBuffer> memory_;  // from its first use on
    const cuda::Device* device_ = nullptr;      // from take() to release()
    StagingStreams::Lane* lane_ = nullptr;      // while it is submitted
    std::vector<Piece> runs_;
    bool to_gpu_ = false;
    unsigned ctas_ = 0;
    std::uint64_t number_ = 0;  // what its word is to tell
    Status status_;             // of the submission
    base::Time begun_{}, ask_{};
  };

  /// What a slot takes where a thread may pin so much; at least 4 KiB.
  static std::size_t slot_bytes(std::size_t pinned) noexcept;

  /// `slot_bytes`: kMaxSlot at most. `lanes` outlives it.
  Staging(std::size_t slot_bytes, StagingStreams& lanes) noexcept;
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging();  ///< Requires: idle().

  /// The caller's until release(). Requires room().
  Result<Slot*> take(const Chunk& chunk);
  /// An error, also of a lane that is not to be had: nothing is in flight, the slot is given back.
  Status submit(Slot& slot);
  /// One that the GPU is done with, if there is any; once each.
  Slot* next_done();
  /// Of one that is taken and not submitted, or done.
  void release(Slot& slot) noexcept;

  bool idle() const noexcept { return busy_ == 0; }  ///< No slot is taken.
  bool room(const cuda::Device& device) const noexcept;
  /// next_done() has news, perhaps.
  bool ready() const noexcept;
  /// How long to do something else before next_done(): at first not at all, then ever longer.
  Duration patience() const noexcept;

 private:
  using Lane = StagingStreams::Lane;
  using State = Slot::State;

  Result<Lane*> lane_of(const cuda::Device& device);
  void leave_lane(Slot& slot) noexcept;
  Status pin(Slot& slot, const cuda::Device& device, const cuda::DeviceScope& scope);
  static unsigned start(Slot& slot, const cuda::DeviceScope& scope);  // how much is in flight
  bool ask_stream(Slot& slot, base::Time now);

  const std::size_t slot_bytes_;
  StagingStreams& lanes_;
  std::vector<cuda::PinnedBuffer> lost_;  // a GPU may have them in its hands for ever
  std::array<Slot, kSlots> slots_;
  unsigned busy_ = 0;
};

}  // namespace linkspan::copy
