// control/exchange.hpp - what two Engines say to each other about a two-sided message.
//
// offer (sender): I have bytes for this tag. accept (receiver): write them to my memory. finished:
// of the side that copied, or of one that lets go. withdraw: please let go. The frame's id is the
// sender's number; an offer that the receiver executes itself needs no accept. See
// engine/rendezvous.hpp for who may say what when.
// Threads: pure functions and values.
// Invariants: what decode_*() returns keeps the limits of lengths and enumerations; sizes, offsets
// and serials are not yet true.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "linkspan/status.hpp"
#include "linkspan/types.hpp"

namespace linkspan::control {

/// Messages match within one: by their tags, or the n-th that is sent the n-th that is received.
enum class MatchSpace : std::uint8_t { tags, in_order };

struct MessageOffer {
  MatchSpace space = MatchSpace::tags;
  std::uint64_t tag = 0, bytes = 0;
  MemoryKind kind = MemoryKind::host;
  std::uint64_t serial = 0, offset = 0;  ///< Serial 0: no bytes.
  std::string require{};
  std::vector<std::byte> descriptor{};  ///< Empty: ask for the serial. Its fds are the frame's.
};
std::vector<std::byte> encode(const MessageOffer& offer);
Result<MessageOffer> decode_offer(std::span<const std::byte> bytes);  ///< Else `corrupt`.

struct MessageAccept {
  MemoryKind kind = MemoryKind::host;
  std::uint64_t serial = 0, offset = 0;
  std::string require{};
  std::vector<std::byte> descriptor{};  ///< Empty: ask for the serial. Its keys have no fds.
};
std::vector<std::byte> encode(const MessageAccept& accept);
Result<MessageAccept> decode_accept(std::span<const std::byte> bytes);  ///< Else `corrupt`.

struct MessageFinished {
  bool by_sender = false;
  bool untouched = false;  ///< Nothing was written: the other side may be matched again.
  Status status{};         ///< Decoded: in the peer's words, and says so.
  MemoryKind kind = MemoryKind::host;
};
std::vector<std::byte> encode(const MessageFinished& finished);
Result<MessageFinished> decode_finished(std::span<const std::byte> bytes);  ///< Else `corrupt`.

std::vector<std::byte> encode_withdraw(bool by_sender);
Result<bool> decode_withdraw(std::span<const std::byte> bytes);  ///< by_sender, else `corrupt`.

}  // namespace linkspan::control
