// engine/message_state.hpp - what a two-sided transfer has instead of a plan.
//
// Threads: under the scheduler's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "base/log.hpp"
#include "control/exchange.hpp"
#include "engine/unregistered_buffers.hpp"

namespace linkspan::engine {

struct MessageState;
struct ImportedRegion;

/// Hears of the steps of one side's exchange. Waits for nothing and calls no Engine.
class MessageObserver {
 public:
  /// Before the peer hears of it. `device`: this process's ordinal of the GPU whose memory it is;
  /// negative: the CPU's.
  virtual void begun(const base::Log& log, std::uint64_t peer, std::uint64_t bytes, int device,
                     const MessageState& exchange) const = 0;
  /// Both sides' memory is known, and so who copies. Under the scheduler's lock.
  virtual void matched(const base::Log& log, const MessageState& exchange) const = 0;
  /// It went well. Under the scheduler's lock.
  virtual void ended(const base::Log& log, const MessageState& exchange) const = 0;

 protected:
  ~MessageObserver() = default;
};

/// Which messages match this side, and who hears of it.
struct MessageKind {
  bool sends = false;
  control::MatchSpace space = control::MatchSpace::tags;
  std::uint64_t tag = 0;
  const MessageObserver* observer = nullptr;  // outlives every exchange; may be null
};

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

struct MessageState {
  /// held: a stream of the user's has to come by first, the peer knows nothing. A send is
  /// `unmatched` while its offer is out: the peer may read our memory all the same. lent: the peer
  /// writes to it.
  enum class Stage : std::uint8_t {
    waiting_on_stream,
    unmatched,
    importing,
    copying,
    peer_copying,
    over
  };

  bool sends = false;
  control::MatchSpace space = control::MatchSpace::tags;
  std::uint64_t tag = 0;
  const MessageObserver* observer = nullptr;
  TemporaryRegistration memory;
  MemoryKind kind = MemoryKind::host;  // of it
  std::string require;

  OfferFrame offer;                   // of a send that is held
  std::vector<std::byte> descriptor;  // of the memory, of a receive that is lent; empty: on request

  Stage stage = Stage::unmatched;
  bool withdrawn = false;  // the peer was asked to let go
  // When a receive and the offer that it took came: their places, should the match be undone.
  std::uint64_t sequence = 0, offer_sequence = 0;
  std::uint64_t wire_id = 0;  // the sender's number
  std::uint64_t bytes = 0;    // what the sender sends, once it is known
  PeerMemory peer;            // of the match
  std::uint64_t copy = 0;     // id of the one-sided transfer under way; 0: none
};

}  // namespace linkspan::engine
