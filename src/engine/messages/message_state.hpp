// engine/messages/message_state.hpp - the state of a two-sided message, part of its TransferState.
//
// On the path of a byte: before the copy, which is a one-sided transfer of its own.
// Threads: under the peer's mutex; MessageObserver::begun() any thread.
// Invariants: none of its own; Rendezvous keeps them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "base/log.hpp"
#include "control/exchange.hpp"
#include "engine/registration/unregistered_buffers.hpp"

namespace linkspan::engine {

struct MessageState;
struct ImportedRegion;

/// Observes the steps of one side's messages. Must not block or call an Engine.
class MessageObserver {
 public:
  /// Called before anything is sent to the peer. `device` is this process's ordinal of the GPU that
  /// has the memory; negative means host memory.
  virtual void begun(const base::Log& log, std::uint64_t peer, std::uint64_t bytes, int device,
                     const MessageState& exchange) const = 0;
  /// Called when both sides' memory kinds, and so the copying side, are known. Under the
  /// peer's mutex.
  virtual void matched(const base::Log& log, const MessageState& exchange) const = 0;
  /// Called when a message has ended well. Under the peer's mutex.
  virtual void ended(const base::Log& log, const MessageState& exchange) const = 0;

 protected:
  ~MessageObserver() = default;
};

/// Direction, match space, tag and observer of a message.
struct MessageKind {
  bool sends = false;
  control::MatchSpace space = control::MatchSpace::tags;
  std::uint64_t tag = 0;
  const MessageObserver* observer = nullptr;  // outlives every message; may be null
};

/// The other side's memory, from its offer or accept.
struct PeerMemory {
  MemoryKind kind = MemoryKind::host;
  std::uint64_t serial = 0, offset = 0;
  std::string require;
  std::shared_ptr<ImportedRegion> region;  // also of the peer's cache and of copies in flight
  Status import_error;                     // of the key that came with the offer
};

/// The offer of a send, by which it is matched.
struct Offer {
  std::uint64_t id = 0, bytes = 0;  // `id`: on the wire, chosen by the sender
  std::uint64_t sequence = 0;       // number of its arrival
  PeerMemory memory;
};

/// The first frame of a send: `payload` with `fds`, or `bare` if the socket has no room for fds.
struct OfferFrame {
  std::vector<std::byte> payload, bare;
  std::vector<base::Fd> fds;
};

struct MessageState : MessageKind {
  /// waiting_on_stream: a user's stream has to reach the mark first; the peer knows nothing. A send
  /// is `unmatched` after its offer was sent, although the peer may read our memory then.
  /// peer_copying: the peer writes to our memory.
  enum class Stage : std::uint8_t {
    waiting_on_stream,
    unmatched,
    importing,
    copying,
    peer_copying,
    over
  };

  TemporaryRegistration memory;
  MemoryKind kind = MemoryKind::host;  // of `memory`
  std::string require;

  OfferFrame frame;  // of a send that waits for a stream
  std::vector<std::byte>
      descriptor;  // of a receive's `memory`, sent with the accept; empty: on request

  Stage stage = Stage::unmatched;
  bool withdrawn = false;      // the peer was asked to stop using the memory
  std::uint64_t sequence = 0;  // of a receive: its place if the match is undone
  // A send's own, or the one that a receive has matched; `memory` is valid after the match.
  Offer offer;
  std::uint64_t copy = 0;  // id of the one-sided transfer that copies; 0 if there is none
};

}  // namespace linkspan::engine
