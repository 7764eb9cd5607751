// transport/local/wire.hpp - the ops of this transport on the Channel.
//
// On the path of a byte: a request to the peer to copy, and its answer.
// Threads: pure functions.
#pragma once

#include <cstdint>

#include "base/schema/flat.hpp"

namespace linkspan::transport::local {

/// Ops on the Channel. The numbers are wire format.
enum class LocalMessage : std::uint16_t {
  offer = 1,
  execute,
  executed,
  cancel,
  retract,
  retracted,
  completion_flags,
};

using schema::finished;
using schema::verified;

}  // namespace linkspan::transport::local
