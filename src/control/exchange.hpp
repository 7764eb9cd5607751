// control/exchange.hpp - the frames by which two Engines match a two-sided message.
//
// offer (sender): I have bytes for this tag. accept (receiver): write them to my memory. finished:
// from the side that copied, or that gives up. withdraw: please give up. The frame's id is the
// sender's number. An offer that the receiver executes itself needs no accept.
// engine/messages/rendezvous.hpp has the rules of the protocol.
// Threads: pure functions and values.
// Invariants: decode_*() enforces the limits of lengths and enumerations. Sizes, offsets and
// serials are not checked yet.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "linkspan/status.hpp"
#include "linkspan/types.hpp"

namespace linkspan::control {

/// Messages match within one space: by tag, or the n-th sent with the n-th received.
enum class MatchSpace : std::uint8_t { tags, in_order };

struct MessageOffer {
  MatchSpace space = MatchSpace::tags;
  std::uint64_t tag = 0, bytes = 0;
  MemoryKind kind = MemoryKind::host;
  std::uint64_t serial = 0, offset = 0;  ///< Serial 0: the message is empty.
  std::string require{};
  std::vector<std::byte> descriptor{};  ///< Empty: import by the serial. Its fds are the frame's.
};
std::vector<std::byte> encode(const MessageOffer& offer);
Result<MessageOffer> decode_offer(std::span<const std::byte> bytes);  ///< Else `corrupt`.

struct MessageAccept {
  MemoryKind kind = MemoryKind::host;
  std::uint64_t serial = 0, offset = 0;
  std::string require{};
  std::vector<std::byte> descriptor{};  ///< Empty: import by the serial. Its keys have no fds.
};
std::vector<std::byte> encode(const MessageAccept& accept);
Result<MessageAccept> decode_accept(std::span<const std::byte> bytes);  ///< Else `corrupt`.

struct MessageFinished {
  bool by_sender = false;
  bool untouched = false;  ///< Nothing was written; the other side may match again.
  Status status{};         ///< After decoding its text names the peer as its source.
  MemoryKind kind = MemoryKind::host;
};
std::vector<std::byte> encode(const MessageFinished& finished);
Result<MessageFinished> decode_finished(std::span<const std::byte> bytes);  ///< Else `corrupt`.

std::vector<std::byte> encode_withdraw(bool by_sender);
Result<bool> decode_withdraw(std::span<const std::byte> bytes);  ///< by_sender, else `corrupt`.

}  // namespace linkspan::control
