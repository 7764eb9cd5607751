// transport/nccl_net/message_type.hpp - types of this transport's messages on the Channel.
//
// Threads: pure functions.
#pragma once

#include <cstdint>

#include "base/schema/flat.hpp"

namespace linkspan::transport::nccl_net {

/// The numbers are wire format.
enum class MessageType : std::uint16_t {
  open = 1,
  listening,
  broken,
  write,
  clear,
  read,
  cancel,
  ended,
};

using schema::finished;
using schema::verified;

}  // namespace linkspan::transport::nccl_net
