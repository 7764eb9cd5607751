// copy/pageable.hpp - copies between GPUs and pageable host memory, through pinned staging slots.
//
// Each executor of CpuCopier has one of these. To a GPU: memcpy packs the pieces of a chunk into a
// slot, and the GPU takes them from there in stream order; from a GPU: the mirror image. A word in
// the slot, written behind the chunk, tells of the GPU's part, so that the thread fills or empties
// one slot while the GPU works at the others. The slots are pinned by the thread that uses them, at
// its first chunks: they lie on its NUMA node, and are the only memory of this path for good.
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

/// What executors submit to, made when a GPU comes up: to make a stream may wait for all that is in
/// flight on the GPU (fact: Held.MakingManyStreams), and that may wait for the copy which needs it.
/// Threads: any thread.
class PageableLanes {
 public:
  struct Lane {
    static Result<std::unique_ptr<Lane>> create(const cuda::Device& device);

    const cuda::Device* device;
    cuda::Stream stream;
    std::optional<cuda::DeviceBuffer> zero;  // the kernel's abort word, which nobody sets
  };

  /// OFF THE LOCK. So many more of a GPU, which outlives them; or none.
  Status make(const cuda::Device& device, unsigned lanes) LINKSPAN_EXCLUDES(mutex_);
  /// Null: none is left of that GPU.
  std::unique_ptr<Lane> take(const cuda::Device& device) LINKSPAN_EXCLUDES(mutex_);

 private:
  base::Mutex mutex_;
  std::vector<std::unique_ptr<Lane>> spare_ LINKSPAN_GUARDED_BY(mutex_);
};

class PageableCopies {
 public:
  /// Two keep the thread and its GPU busy; a third takes up what either is late. The last is for
  /// another GPU: one that stands still, its SMs taken by a kernel of the user's, holds up itself.
  static constexpr unsigned kSlots = 4, kSlotsOfAGpu = 3;
  /// Of one chunk at most; a run is contiguous on the GPU. Without the kernel each is a copy, and
  /// all slots together stay below what a stream takes (docs/cuda_notes.md, "queues").
  static constexpr std::size_t kRuns = 240;
  /// So that slots stay in the caches between memcpy and the GPU; at a guess, not measured.
  static constexpr std::size_t kMostBytes = std::size_t{2} << 20;
  /// Beside the bytes of a slot: its words, the kernel's list, and what is left free between runs.
  static constexpr std::size_t kBeside = 12u << 10;

  struct Chunk {
    const cuda::Device* device = nullptr;  ///< Outlives this.
    std::span<const Piece> pieces{};       ///< Stay until it has ended.
    bool to_gpu = false;
    unsigned ctas = 0;       ///< As Order::ctas.
    std::size_t cookie = 0;  ///< The caller's.
  };
  struct Ended {
    std::size_t cookie = 0;
    Status status;
  };

  /// What a slot takes where a thread may pin so much; at least 4 KiB.
  static std::size_t slot_bytes(std::size_t pinned) noexcept;
  /// The piece goes on on the GPU where the one before it ends.
  static bool joins(const Piece& before, const Piece& piece, bool to_gpu) noexcept {
    return (to_gpu ? before.to : before.from) + before.bytes == (to_gpu ? piece.to : piece.from);
  }

  /// `lanes` outlives it.
  PageableCopies(std::size_t slot_bytes, PageableLanes& lanes)
      : slot_bytes_(slot_bytes), spare_(lanes) {}
  PageableCopies(const PageableCopies&) = delete;
  PageableCopies& operator=(const PageableCopies&) = delete;
  ~PageableCopies() = default;  ///< Requires: idle().

  /// At most slot_bytes and kRuns, and requires room(). An error: nothing is in flight.
  Status begin(const Chunk& chunk);
  /// One that is quiet, if there is any. From a GPU: copies its bytes to where they belong.
  std::optional<Ended> end_one();
  /// Nothing is in flight.
  bool idle() const noexcept { return busy_ == 0; }
  bool room(const cuda::Device& device) const noexcept;
  /// end_one() has news, perhaps.
  bool ready() const noexcept;
  /// How long to do something else before end_one(): at first not at all, then ever longer.
  Duration patience() const noexcept;

 private:
  using Lane = PageableLanes::Lane;
  struct Slot {
    std::optional<cuda::PinnedBuffer> memory;  // from its first use on
    Lane* lane = nullptr;                      // null: free
    Chunk chunk;
    std::uint64_t number = 0;  // what its word is to tell
    Status status;             // of the submission
    base::Time begun{}, ask{};

    bool told() const noexcept;
  };

  Result<Lane*> lane_of(const cuda::Device& device);
  Status pin(Slot& slot, const cuda::DeviceScope& scope) const;
  unsigned submit(Slot& slot, const cuda::DeviceScope& scope);  // how much of it is in flight
  bool ask_stream(Slot& slot, base::Time now);

  const std::size_t slot_bytes_;
  PageableLanes& spare_;
  std::vector<cuda::PinnedBuffer> lost_;  // a GPU may have them in its hands for ever
  std::array<Slot, kSlots> slots_;
  unsigned busy_ = 0;
  std::vector<Piece> runs_;                   // of the chunk that begins
  std::vector<std::unique_ptr<Lane>> lanes_;  // one a device, made at its first chunk
};

}  // namespace linkspan::copy
