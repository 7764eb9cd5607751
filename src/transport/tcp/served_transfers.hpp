// transport/tcp/served_transfers.hpp - the peer's transfers on regions of this side: its puts, and
// the answers to its gets.
//
// On the path of a byte: checks that the peer may write or read the region, at each frame. A peer
// that stalls keeps a region no longer than the bounds below.
// Threads: under the mutex of the ConnectionGroup.
// Invariants: a transfer uses its region until it has ended, was refused or was revoked.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.hpp"
#include "transport/tcp/tcp_batch.hpp"
#include "transport/transport.hpp"
#include "transport/wire_region.hpp"

namespace linkspan::transport::tcp {

class ServedTransfers {
 public:
  /// Bound a peer's transfers: time without progress of a put at least, the same on a retracted
  /// region, and the total time after the retraction.
  static constexpr Duration kMaxStall = std::chrono::seconds(60),
                            kMaxStallRetracted = std::chrono::seconds(10),
                            kMaxRetracted = std::chrono::seconds(30);

  /// `published` outlives it. `most`: transfers at once in each direction. `max_stall`: time
  /// without progress of a put.
  ServedTransfers(WireRegionTable& published, std::size_t most, Duration max_stall = kMaxStall)
      : published_(published), most_(most), max_stall_(std::max(max_stall, kMaxStall)) {}

  bool empty() const noexcept { return puts_.empty() && answers_.empty(); }
  void clear();

  /// Returns the put that a frame belongs to; creates it at its first frame. It is refused if the
  /// peer may not write there. corrupt: the peer breaks the protocol.
  Result<std::shared_ptr<Incoming>> find_or_create_put(const Head& head);
  void end_put(std::uint64_t id) { erase(puts_, id); }
  /// Begins the answer to a get, which has no extents if the peer may not read there. corrupt: the
  /// peer breaks the protocol.
  Result<std::shared_ptr<Outgoing>> add_answer(const Head& head);
  /// Returns false if the answer has ended.
  bool cancel_answer(std::uint64_t id);
  void end_answer(std::uint64_t id) { erase(answers_, id); }

  struct StallCheck {
    bool any_revoked = false;  ///< Data connections must let go of memory.
    Status broken{};           ///< Not OK: one can only be ended with the connections.
  };
  /// Ends transfers that make no progress, or outlive the retraction of their region. The error is
  /// reported once the peer has sent the last frame; memory is released at once.
  StallCheck end_stalled(base::Time now);
  /// Lists them as Endpoint::served() does. `now` is of the same clock as end_stalled().
  std::vector<Served> list(base::Time now) const;

 private:
  Status stall_status(PeersProgress& progress, const WireRegion& memory, bool bounded,
                      base::Time now) const;

  WireRegionTable& published_;
  const std::size_t most_;
  const Duration max_stall_;
  Batches<Incoming> puts_;
  Batches<Outgoing> answers_;  // until they are sent
};

}  // namespace linkspan::transport::tcp
