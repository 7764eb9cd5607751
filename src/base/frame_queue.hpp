// base/frame_queue.hpp - the header of a frame, and the frames of an FdChannel that wait to be
// sent.
//
// Off the path of a byte.
// Threads: externally synchronised.
// Invariants: at most kMaxQueuedBytes and kMaxQueuedFds wait.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "base/fd.hpp"
#include "base/frame_authenticator.hpp"
#include "linkspan/status.hpp"

namespace linkspan::base {

inline constexpr std::uint16_t kProtocolVersion = 1;
inline constexpr std::size_t kFrameHeaderBytes = 24;
inline constexpr std::size_t kMaxPayload = std::size_t{1} << 20;
inline constexpr std::size_t kMaxFrameFds = 64;
inline constexpr std::size_t kMaxQueuedBytes = std::size_t{16} << 20;
inline constexpr std::size_t kMaxQueuedFds = 256;

struct FrameHeader {
  std::uint32_t length = 0;  ///< Size of the payload. queue() sets it.
  std::uint16_t version = kProtocolVersion;
  std::uint16_t op = 0;
  std::uint64_t id = 0;
  std::uint64_t incarnation = 0;
  friend bool operator==(const FrameHeader&, const FrameHeader&) = default;
};
std::array<std::byte, kFrameHeaderBytes> encode(const FrameHeader& header) noexcept;
FrameHeader decode_header(std::span<const std::byte, kFrameHeaderBytes> bytes) noexcept;

/// Queues frames. The constructor throws bad_alloc: an empty deque of libstdc++ allocates.
class FrameQueue {
 public:
  /// Returns what push() of these would exceed: no_resource: too much is queued. invalid_argument:
  /// the limits of a frame, or an fd is closed.
  Status check(std::span<const std::byte> payload, std::span<const Fd> fds) const;
  /// Appends a frame that check() accepts, and moves its fds in. If it throws, it has appended
  /// nothing. An error of the MAC tag ends the stream.
  Status push(const FrameHeader& header, std::span<const std::byte> payload, std::span<Fd> fds);
  /// Appends a MAC tag to each frame from now on.
  void authenticate(const MacKey& key) { mac_.emplace(key); }

  bool empty() const noexcept { return frames_.empty(); }
  std::size_t bytes() const noexcept { return bytes_; }
  /// Returns the rest of the first frame, and the fds that go with its first byte.
  std::span<std::byte> unsent() noexcept {
    return std::span(frames_[0].bytes).subspan(frames_[0].sent);
  }
  std::span<const Fd> fds() const noexcept { return frames_[0].fds; }
  void advance(std::size_t sent);  ///< Removes `sent` bytes of unsent(), and the fds.
  void clear();

 private:
  struct OutgoingFrame {
    std::vector<std::byte> bytes;  // header, payload, MAC tag
    std::vector<Fd> fds;           // empty once the first byte has gone
    std::size_t sent = 0;
  };

  std::size_t size_of(std::size_t payload) const noexcept {
    return kFrameHeaderBytes + payload + (mac_ ? kMacTagBytes : std::size_t{0});
  }

  std::optional<FrameAuthenticator> mac_;
  std::deque<OutgoingFrame> frames_;
  std::size_t bytes_ = 0, fds_ = 0;
};

}  // namespace linkspan::base
