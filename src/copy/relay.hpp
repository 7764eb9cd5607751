// copy/relay.hpp - the PCIe links of other GPUs, lent to the copies from host memory to one.
//
// A GPU's own link is several times slower than NVLink. So of a large piece the GPU's own link
// takes the front, and the rest comes in chunks: another GPU copies one from host memory into a
// slot of its own memory, and ours fetches it from there. With two slots both hops are busy. Only
// our own GPU writes to the destination: its stream tells the end of all, and a mapping of a peer's
// memory has to be known to no other GPU. The others read host memory, and write their slots only.
// Threads: externally synchronised (under the scheduler's lock); create() is OFF THE LOCK.
// Invariants: memory, streams and events are made in create(); of a way at most kChunks chunks are
// in flight, so a submission never blocks in the driver; what is queued to a way moves by itself,
// unless it is the way behind users' streams.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "copy/chooser.hpp"
#include "copy/copier.hpp"
#include "cuda/event.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "cuda/topology.hpp"

namespace linkspan::copy {

class Relay {
 public:
  /// A chunk is a copy, a wait and a record in two streams, each of which takes about 1021 entries.
  static constexpr unsigned kChunks = 256;
  static constexpr unsigned kSlots = 2;  ///< Of each lent GPU, for each way.

  /// What orders queue to. There are two: one for orders behind users' streams, which may stand
  /// still, of one such stream at a time.
  class Way {
   public:
    unsigned in_flight() const noexcept { return in_flight_; }  ///< Chunks.

   private:
    friend class Relay;
    struct Slot {
      std::size_t lender;
      cuda::CUdeviceptr memory;
      cuda::Event full, empty;  // of the lender's context, of ours
    };
    Way(cuda::Stream stream, cuda::Event event)
        : fetches_(std::move(stream)), joined_(std::move(event)) {}

    std::vector<Slot> slots_;          // of all lenders in turn
    std::vector<cuda::Stream> fills_;  // by lender
    cuda::Stream fetches_;
    cuda::Event joined_;
    std::size_t next_ = 0;  // slot
    unsigned in_flight_ = 0;
    std::uint64_t held_by_ = 0;  // the user's stream
  };

  /// Of `most` GPUs at most, of those that `device` reaches over its peer access: the ones after it
  /// by ordinal. unsupported: there are none, or `most` is zero. Up to 0.5 s for each.
  static Result<std::unique_ptr<Relay>> create(cuda::Topology& topology, const cuda::Device& device,
                                               unsigned most);
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;
  ~Relay() = default;

  unsigned links() const noexcept { return static_cast<unsigned>(lenders_.size()) + 1; }
  /// What of a piece comes over lent links, from its end; 0: it is too small.
  std::uint64_t share(std::uint64_t bytes) const noexcept;

  /// Where an order may queue. Null: its own link takes all. no_resource: there will be room.
  Result<Way*> way_of(const Order& order);
  /// What is queued to it from now on starts after `event`.
  Status wait_for(Way& way, const cuda::Event& event);
  /// How much of `piece`, from its front, was queued: less than all once a lender failed, which is
  /// then not asked again, or where there is no room. `scope` is of the copier's GPU.
  std::uint64_t queue(const cuda::DeviceScope& scope, Way& way, const Piece& piece);
  /// `stream` goes on after all that was queued.
  Status join(const cuda::DeviceScope& scope, Way& way, cuda::Stream& stream);
  /// An order has ended that had queued so many: OK, or the error of a lender, without whose
  /// context nothing has to be true of those bytes. One query for each lender.
  Status end(Way& way, unsigned chunks);

 private:
  explicit Relay(std::vector<const cuda::Device*> lenders) : lenders_(std::move(lenders)) {}
  Status add_way(const cuda::Device& device);
  std::uint64_t chunk_bytes(std::uint64_t share) const noexcept;
  Status fill(Way& way, Way::Slot& slot, std::uint64_t from, std::uint64_t bytes);

  const std::vector<const cuda::Device*> lenders_;
  Status lost_;                             // why no lender is asked any more
  std::vector<cuda::DeviceBuffer> memory_;  // of each lender, for each way
  std::vector<Way> ways_;                   // last: their streams end before what they write to
};

}  // namespace linkspan::copy
