// copy/relay.hpp - copies from host memory to one GPU over the PCIe links of other GPUs.
//
// A GPU's own PCIe link is several times slower than NVLink. So the own link takes the front of a
// large piece, and the rest goes in chunks: a donor GPU copies a chunk from host memory into a
// buffer of its own memory, and the destination's GPU fetches it from there. Two buffers keep both
// hops busy. Only the destination's GPU writes to the destination: its stream shows the end of all,
// and the mapping of a peer's memory need not be known to a donor.
// Threads: externally synchronised (under its transport's mutex); create() is OFF THE LOCK.
// Invariants: create() makes all memory, streams and events; at most kChunks chunks of a
// RelayStreams are in flight, so a submission never blocks in the driver; queued chunks make
// progress, except those after a user's stream. If a donor's context is lost, its orders fail, and
// later ones use one link.
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
  /// Maximum number of chunks in flight. A chunk is a copy, a wait and a record in two streams,
  /// each of which takes about 1021 entries.
  static constexpr unsigned kChunks = 256;
  static constexpr unsigned kBuffers = 2;  ///< Per donor and RelayStreams.

  /// The CUDA streams and buffers that orders queue to. There are two sets; one is for orders after
  /// a user's stream, which may stall, and serves one such stream at a time.
  class RelayStreams {
   public:
    unsigned in_flight() const noexcept { return in_flight_; }  ///< Chunks.

   private:
    friend class Relay;
    struct RelayBuffer {
      std::size_t donor;
      cuda::CUdeviceptr memory;
      cuda::Event full, empty;  // in the donor's context; in the destination's
    };
    RelayStreams(cuda::Stream stream, cuda::Event event)
        : fetches_(std::move(stream)), joined_(std::move(event)) {}

    std::vector<RelayBuffer> buffers_;  // of all donors, alternating
    std::vector<cuda::Stream> fills_;   // by donor, host memory to buffer
    cuda::Stream fetches_;              // buffer to destination
    cuda::Event joined_;
    std::size_t next_buffer_ = 0;  // index into buffers_
    unsigned in_flight_ = 0;
    std::uint64_t user_stream_ = 0;  // that the queued orders wait for
  };

  /// Makes a relay over at most `most` donors, of the GPUs that `device` has peer access to, in the
  /// order of their ordinals after its own. unsupported: there are none, or `most` is 0. Takes up
  /// to 0.5 s for each.
  static Result<std::unique_ptr<Relay>> create(cuda::Topology& topology, const cuda::Device& device,
                                               unsigned most);
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;
  ~Relay() = default;

  unsigned links() const noexcept { return static_cast<unsigned>(donors_.size()) + 1; }
  /// Returns how many bytes at the end of a piece go over donors; 0 for a piece that is too small.
  std::uint64_t share(std::uint64_t bytes) const noexcept;

  /// Returns the streams for an order. Null: the own link takes all of it. no_resource: try again
  /// after progress.
  Result<RelayStreams*> choose_streams(const Order& order);
  /// Makes all that is queued from now on start after `event`.
  Status wait_for(RelayStreams& streams, const cuda::Event& event);
  /// Queues chunks from the front of `piece` and returns the bytes queued. They are fewer than all
  /// when there is no room or a donor fails; a relay is not used again after that. `scope` is of
  /// the copier's GPU.
  std::uint64_t queue(const cuda::DeviceScope& scope, RelayStreams& streams, const Piece& piece);
  /// Makes `stream` wait for all that was queued.
  Status join(const cuda::DeviceScope& scope, RelayStreams& streams, cuda::Stream& stream);
  /// Ends an order that had queued `chunks` chunks. Returns OK, or the error of a donor, after
  /// which the bytes may not have arrived. Costs one query for each donor.
  Status end(RelayStreams& streams, unsigned chunks);

 private:
  explicit Relay(std::vector<const cuda::Device*> donors) : donors_(std::move(donors)) {}
  Status add_streams(const cuda::Device& device);
  std::uint64_t chunk_bytes(std::uint64_t share) const noexcept;
  Status fill(RelayStreams& streams, RelayStreams::RelayBuffer& buffer, std::uint64_t from,
              std::uint64_t bytes);

  const std::vector<const cuda::Device*> donors_;
  Status donor_error_;                      // not OK: no donor is used any more
  std::vector<cuda::DeviceBuffer> memory_;  // per donor and RelayStreams
  std::vector<RelayStreams> stream_sets_;   // last: the streams end before the memory
};

}  // namespace linkspan::copy
