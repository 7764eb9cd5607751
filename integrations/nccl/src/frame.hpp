// nccl/frame.hpp - what two processes with the plugin tell each other in notifications, and the
// handle by which NCCL lets one find the other.
//
// Threads: pure functions and plain data.
// Invariants: little endian, which all machines with CUDA are.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "transport/nccl_net/abi.hpp"

namespace linkspan::nccl {

enum class FrameKind : std::uint32_t {
  hello = 1,  ///< Asks a listener for a comm; `number` is the sending one.
  accepted,   ///< Answers `hello`; `number` is the receiving comm.
  room,    ///< A receive is posted: `bytes` at `offset` of the region `region`. Others may follow.
  landed,  ///< Behind the data of the message.
  small,   ///< The message itself follows the frame.
  want,    ///< A message waits for the room of its receive.
  closed,  ///< NCCL has closed the comm; messages before `number` are not touched by that.
};

struct Frame {
  static constexpr std::uint32_t kMagic = 0x314e534c;  // "LSN1"

  std::uint32_t magic = kMagic;
  FrameKind kind{};
  std::uint64_t comm = 0;    ///< Whom it is for; hello: the listener.
  std::uint64_t number = 0;  ///< Of the message, from 0.
  std::uint64_t bytes = 0, region = 0, offset = 0;
};
static_assert(sizeof(Frame) == 48);

/// Maximum of a notification that travels with data, and of a message in one.
inline constexpr std::size_t kMaxNotification = 4096;
inline constexpr std::size_t kSmallBytes = kMaxNotification - sizeof(Frame);

inline std::span<const std::byte> bytes_of(const Frame& frame) {
  return std::as_bytes(std::span(&frame, 1));
}
/// Returns the frame at the begin of a notification. nullopt: there is none.
inline std::optional<Frame> frame_of(std::span<const std::byte> bytes) {
  Frame frame;
  if (bytes.size() < sizeof frame) return std::nullopt;
  std::memcpy(&frame, bytes.data(), sizeof frame);
  if (frame.magic != Frame::kMagic) return std::nullopt;
  return frame;
}

/// NCCL carries it from the listener to who connects, which keeps its state in it meanwhile.
struct Handle {
  static constexpr std::uint64_t kMagic = 0x4e41'5053'4b4e'494c;  // "LINKSPAN"

  std::uint64_t magic = kMagic;
  std::uint64_t listener = 0;
  std::uint64_t connecting = 0;     ///< Of who connects; 0: not yet.
  std::array<char, 104> address{};  ///< As Engine::connect() takes it, with a zero behind.

  std::string_view where() const {
    return {address.data(), ::strnlen(address.data(), address.size())};
  }
};
static_assert(sizeof(Handle) == transport::nccl_net::abi::kHandleBytes);

}  // namespace linkspan::nccl
