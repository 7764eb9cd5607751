// tests/support/nccl_net_plugin/wire.hpp - what goes over a connection, and the handle by which it
// is found. Both sides are this plugin, perhaps of another version, on machines alike.
//
// Threads: declarations only.
#pragma once

#include <cstdint>

#include "tests/support/nccl_net_plugin/abi.hpp"

namespace linkspan::nccl_test {

inline constexpr std::uint64_t kHandleMagic = 0x6c73706e2d68646c;
inline constexpr std::uint64_t kAskMagic = 0x6c73706e2d61736b, kAnswerMagic = 0x6c73706e2d616e73;
inline constexpr std::uint32_t kMessageMagic = 0x6c736d67;

/// The contents of listen()'s 128 bytes. From the first try on connect() keeps its state there.
struct Handle {
  std::uint64_t magic;
  std::uint32_t address;  // as the network orders it
  std::uint32_t port;     // also
  std::uint64_t nonce;    // of the listener
  std::uint64_t self;     // the handle's own place; 0: no try yet
};
static_assert(sizeof(Handle) <= kHandleBytes);

/// First each way.
struct Hello {
  std::uint64_t magic;
  std::uint64_t nonce;
};

/// Before each message's bytes.
struct MessageHeader {
  std::uint32_t magic;
  std::int32_t tag;
  std::uint64_t bytes;
};

}  // namespace linkspan::nccl_test
