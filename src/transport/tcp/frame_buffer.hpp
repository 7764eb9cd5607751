// transport/tcp/frame_buffer.hpp - received bytes that are not parsed yet: finds the heads of the
// frames in them and verifies their seals.
//
// On the path of a byte: heads come through it, and the data that was received together with them.
// It has room for more than a head; with seals for a whole frame, because no byte of a frame may be
// used before its seal was verified.
// Threads: externally synchronised.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/frame_authenticator.hpp"
#include "transport/tcp/frame.hpp"

namespace linkspan::transport::tcp {

class FrameBuffer {
 public:
  /// Frames must be of `peer`, the incarnation of an Engine.
  explicit FrameBuffer(std::uint64_t peer) : peer_(peer) {}

  /// Requires a seal after each frame from now on. Called before the first frame.
  void expect_seals(const base::MacKey& key);

  /// Moves the unparsed bytes to the front. Returns where bytes may be received: little, because
  /// data in the buffer is copied once more, or as much as fits if `data_goes_through_it`.
  iovec room(bool data_goes_through_it) noexcept;
  void received(std::size_t bytes) noexcept { end_ += bytes; }  ///< In room().

  /// Removes the next head from the front. Returns none if it, or its sealed frame, is not wholly
  /// here. corrupt: not a frame of that peer, or not its seal.
  Result<std::optional<Head>> next_head();
  /// Returns the bytes of the frame's data that are here, and perhaps of what follows it.
  std::span<const std::byte> unparsed() const noexcept {
    return std::span(bytes_).subspan(begin_, end_ - begin_);
  }
  void remove(std::size_t bytes) noexcept { begin_ += bytes; }  ///< From the front.
  /// Skips the frame's seal, which was verified. Called after the last byte of its data.
  void end_frame() noexcept {
    if (verifier_) begin_ += base::kMacTagBytes;
  }

 private:
  Result<bool> check_seal(std::uint64_t frame);

  const std::uint64_t peer_;
  std::vector<std::byte> bytes_ = std::vector<std::byte>(2 * kMaxHead);
  std::size_t begin_ = 0, end_ = 0;  // of the unparsed bytes
  std::optional<base::FrameAuthenticator> verifier_;
};

}  // namespace linkspan::transport::tcp
