// transport/verbs/message_type.hpp - types of this transport's messages on the Channel.
//
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/schema/flat.hpp"

namespace linkspan::transport::verbs {

/// The numbers are wire format.
enum class VerbsMessage : std::uint16_t {
  open = 1,
  opened,
  access,
  granted,
  revoke,
  returned,
  flush,
  flushed,
};

/// Returns whether a message of the peer's caused it.
inline bool is_answer(VerbsMessage type) noexcept {
  return type == VerbsMessage::opened || type == VerbsMessage::granted ||
         type == VerbsMessage::returned || type == VerbsMessage::flushed;
}

inline constexpr std::size_t kMaxReason = 512;  ///< Bytes of a text, at most.

using schema::finished;
using schema::verified;

}  // namespace linkspan::transport::verbs
