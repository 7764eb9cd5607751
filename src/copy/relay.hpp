// copy/relay.hpp - the PCIe links of other GPUs, access to the copies from host memory to one.
//
// A GPU's own link is several times slower than NVLink. So of a large piece the GPU's own link
// takes the front, and the rest comes in chunks: another GPU copies one from host memory into a
// buffer of its own memory, and ours fetches it from there. With two slots both hops are busy. Only
// our own GPU writes to the destination: its stream tells the end of all, and a mapping of a peer's
// memory has to be known to no other GPU. The others read host memory, and write their slots only.
// Threads: externally synchronised (under the scheduler's lock); create() is OFF THE LOCK.
// Invariants: memory, streams and events are made in create(); of a streams at most kChunks chunks
// are in flight, so a submission never blocks in the driver; what is queued to a streams moves by
// itself, unless it is the streams behind users' streams.
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
  static constexpr unsigned kBuffers = 2;  ///< Of each access GPU, for each streams.

  /// What orders queue to. There are two: one for orders behind users' streams, which may stand
  /// still, of one such stream at a time.
  class RelayStreams {
   public:
    unsigned in_flight() const noexcept { return in_flight_; }  ///< Chunks.

   private:
    friend class Relay;
    struct RelayBuffer {
      std::size_t donor;
      cuda::CUdeviceptr memory;
      cuda::Event full, empty;  // of the donor's context, of ours
    };
    RelayStreams(cuda::Stream stream, cuda::Event event)
        : fetches_(std::move(stream)), joined_(std::move(event)) {}

    std::vector<RelayBuffer> buffers_;  // of all donors in turn
    std::vector<cuda::Stream> fills_;   // by donor
    cuda::Stream fetches_;
    cuda::Event joined_;
    std::size_t next_buffer_ = 0;  // buffer
    unsigned in_flight_ = 0;
    std::uint64_t user_stream_ = 0;  // the user's stream
  };

  /// Of `most` GPUs at most, of those that `device` reaches over its peer access: the ones after it
  /// by ordinal. unsupported: there are none, or `most` is zero. Up to 0.5 s for each.
  static Result<std::unique_ptr<Relay>> create(cuda::Topology& topology, const cuda::Device& device,
                                               unsigned most);
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;
  ~Relay() = default;

  unsigned links() const noexcept { return static_cast<unsigned>(donors_.size()) + 1; }
  /// What of a piece comes over access links, from its end; 0: it is too small.
  std::uint64_t share(std::uint64_t bytes) const noexcept;

  /// Where an order may queue. Null: its own link takes all. no_resource: there will be room.
  Result<RelayStreams*> choose_streams(const Order& order);
  /// What is queued to it from now on starts after `event`.
  Status wait_for(RelayStreams& streams, const cuda::Event& event);
  /// How much of `piece`, from its front, was queued: less than all once a donor failed, which is
  /// then not asked again, or where there is no room. `scope` is of the copier's GPU.
  std::uint64_t queue(const cuda::DeviceScope& scope, RelayStreams& streams, const Piece& piece);
  /// `stream` goes on after all that was queued.
  Status join(const cuda::DeviceScope& scope, RelayStreams& streams, cuda::Stream& stream);
  /// An order has ended that had queued so many: OK, or the error of a donor, without whose
  /// context nothing has to be true of those bytes. One query for each donor.
  Status end(RelayStreams& streams, unsigned chunks);

 private:
  explicit Relay(std::vector<const cuda::Device*> donors) : donors_(std::move(donors)) {}
  Status add_streams(const cuda::Device& device);
  std::uint64_t chunk_bytes(std::uint64_t share) const noexcept;
  Status fill(RelayStreams& streams, RelayStreams::RelayBuffer& buffer, std::uint64_t from,
              std::uint64_t bytes);

  const std::vector<const cuda::Device*> donors_;
  Status donor_error_;                      // why no donor is asked any more
  std::vector<cuda::DeviceBuffer> memory_;  // of each donor, for each streams
  std::vector<RelayStreams> stream_sets_;   // last: their streams end before what they write to
};

}  // namespace linkspan::copy
