// engine/exchange.hpp - what a two-sided transfer has instead of a plan.
//
// Threads: under the Worker's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "control/exchange.hpp"
#include "engine/loose_memory.hpp"

namespace linkspan::engine {

struct ImportedRegion;

/// The other side's memory, as its offer or accept told.
struct PeerMemory {
  MemoryKind kind = MemoryKind::host;
  std::uint64_t serial = 0, offset = 0;
  std::string require;
  std::shared_ptr<ImportedRegion> region;  // also of the peer's cache and of copies in flight
  Status import_error;                     // of a key that came with the offer
};

/// The first frame of a send. `fds` go with `payload`; where they have no room, `bare` goes.
struct OfferFrame {
  std::vector<std::byte> payload, bare;
  std::vector<base::Fd> fds;
};

struct Exchange {
  /// held: a stream of the user's has to come by first, the peer knows nothing. A send is
  /// `unmatched` while its offer is out: the peer may read our memory all the same. lent: the peer
  /// writes to it.
  enum class Stage : std::uint8_t { held, unmatched, importing, copying, lent, over };

  bool sends = false;
  control::Space space = control::Space::tags;
  std::uint64_t tag = 0;
  Loan memory;
  MemoryKind kind = MemoryKind::host;  // of it
  std::string require;

  OfferFrame offer;                   // of a send that is held
  std::vector<std::byte> descriptor;  // of the memory, of a receive that is lent; empty: on request

  Stage stage = Stage::unmatched;
  bool withdrawn = false;  // the peer was asked to let go
  // When a receive and the offer that it took came: their places, should the match be undone.
  std::uint64_t turn = 0, offer_turn = 0;
  std::uint64_t wire_id = 0;  // the sender's number
  std::uint64_t bytes = 0;    // what the sender sends, once it is known
  PeerMemory peer;            // of the match
  std::uint64_t copy = 0;     // id of the one-sided transfer under way; 0: none
};

}  // namespace linkspan::engine
