// base/fd_channel.hpp - frames over a stream socket, with file descriptors over a Unix one. Never
// blocks.
//
// A frame is a header of 24 bytes, little-endian (payload length u32, version u16, op u16, id u64,
// incarnation u64), then the payload. Its fds travel with the first byte of its header. Once both
// sides have agreed, a MAC tag of 16 bytes follows each frame (base/frame_authenticator.hpp). Over
// TLS (base/tls.hpp) no fds travel.
// The receiver never reads past the end of the header or payload that it is reading, and the kernel
// never delivers bytes of two sendmsg calls with fds in one recvmsg. So fds that come with a header
// belong to that frame, and fds that come with a payload are an error. What arrives is hostile.
// Off the path of a byte: control messages, handles, notifications.
// Threads: externally synchronised.
// Invariants: after an error that ended the stream every call returns that error. The peer then
// sees end-of-file, while fd() stays open so that its number is not used again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/fd.hpp"
#include "base/frame_queue.hpp"
#include "base/tls.hpp"
#include "linkspan/status.hpp"

namespace linkspan::base {

struct Frame {
  FrameHeader header;
  std::vector<std::byte> payload;
  std::vector<Fd> fds;
  bool fds_lost =
      false;  ///< The kernel dropped its fds for lack of room in our table; `fds` is empty.
  bool plain = false;  ///< It came without TLS although TLS was required.
};

class FdChannel {
 public:
  /// Owns `socket`. Received fds get the sink of the socket. Throws bad_alloc, as FrameQueue does.
  explicit FdChannel(Fd socket) : socket_(std::move(socket)) {}
  FdChannel(FdChannel&&) = default;
  FdChannel& operator=(FdChannel&&) = default;
  FdChannel(const FdChannel&) = delete;
  FdChannel& operator=(const FdChannel&) = delete;
  ~FdChannel();

  /// Queues a frame and moves its fds in; sends nothing yet. no_resource: too much is queued, and
  /// nothing was moved. invalid_argument: payload or fds exceed the limits of a frame.
  Status queue(const FrameHeader& header, std::span<const std::byte> payload, std::span<Fd> fds);
  /// Sends what the socket accepts now. no_resource: the kernel has no room for more fds in flight;
  /// try again later. disconnected: the peer closed, or its host is unreachable.
  Status flush();
  bool wants_write() const noexcept {
    return !out_.empty() && !(tls_ != nullptr && tls_->waits_for_peer());
  }
  /// Returns true if bytes were read from the socket but not yet received; poll(2) does not report
  /// them.
  bool has_buffered() const noexcept { return tls_ != nullptr && tls_->has_buffered(); }

  /// Returns the next frame, or nullopt if it is not complete. Frames that the peer sent before it
  /// closed come first. The caller checks the version. disconnected: as flush(). corrupt: the bytes
  /// are not frames. permission_denied: only the peer uses TLS, or it has another secret.
  /// no_resource: the peer sends more fds while earlier ones block in close(2).
  Result<std::optional<Frame>> receive();

  /// Switches to TLS. Call before anything is sent or received. Frames of a peer without TLS are
  /// `plain`: queued frames for it are dropped, and later ones (an error at most) go without TLS.
  void secure(std::unique_ptr<TlsEnd> tls) { tls_ = std::move(tls); }
  /// Rejects received frames with a larger payload as corrupt. Limits a peer that is not
  /// authenticated yet.
  void limit_payload(std::size_t bytes) noexcept { max_payload_ = bytes; }
  /// Returns true if a byte was received or waits in the socket.
  bool has_received() const noexcept;
  /// Returns the bytes of memory that this connection uses.
  std::size_t allocated_bytes() const noexcept {
    return in_.frame.payload.capacity() + in_.frame.fds.capacity() * sizeof(Fd) + out_.bytes();
  }
  /// Appends a MAC tag to each frame queued from now on.
  void authenticate_sent(const MacKey& key) { out_.authenticate(key); }
  /// Requires a valid MAC tag on each frame received from now on; others are corrupt.
  void authenticate_received(const MacKey& key) { received_mac_.emplace(key); }

  int fd() const noexcept { return socket_.get(); }  ///< Borrowed, for poll(2).
  /// Moves the socket out. No byte after the received frames was read.
  Fd release_socket() noexcept { return std::move(socket_); }
  std::unique_ptr<TlsEnd> release_tls() noexcept { return std::move(tls_); }

 private:
  /// Contains the received part of the current frame.
  struct PartialFrame {
    std::array<std::byte, kFrameHeaderBytes> header{};
    std::size_t header_got = 0, payload_got = 0;
    Frame frame;
  };

  Status send_some(bool& would_block);
  Status send_by_tls(bool& would_block);
  Status cut_off(Status why);
  Result<std::size_t> read_some(std::span<std::byte> into, std::size_t max_fds);
  Result<std::size_t> read_by_tls(std::span<std::byte> into);
  Status verify_tag();
  Status fail(Status why);

  Fd socket_;
  std::unique_ptr<TlsEnd> tls_;  // borrows the socket
  bool plain_ = false;           // the peer has no TLS
  FrameQueue out_;
  std::optional<FrameAuthenticator> received_mac_;
  std::size_t max_payload_ = kMaxPayload;
  bool received_any_ = false;
  PartialFrame in_;
  Status cut_;  // why sending failed: the kernel reports it once, then end-of-file
  Status failure_;
};

}  // namespace linkspan::base
