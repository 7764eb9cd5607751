// base/fd_channel.hpp - frames over a stream socket, and file descriptors over a Unix one, without
// blocking.
//
// A frame is a header of 24 bytes, little-endian (length of the payload u32, version u16, op u16,
// id u64, incarnation u64), then the payload. Its fds travel with the first byte of its header.
// Once both sides have said so, 16 bytes follow each frame that seal all of it
// (base/frame_authenticator.hpp). By TLS (base/tls.hpp) no fds travel. The receiver never reads
// past the end of the header or payload it is at, and the kernel never delivers bytes of two
// sendmsg with fds in one recvmsg; so fds that come while a header is read are that frame's, and
// fds that come with a payload are an error. What arrives is hostile. Off the path of a byte:
// control messages, handles, notifications. Threads: externally synchronised. Invariants: after an
// error that lost the stream every call answers that error; the peer then sees an end-of-file,
// while fd() stays open, so that its number is no one else's.
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
#include "base/tls.hpp"
#include "linkspan/status.hpp"

namespace linkspan::base {

inline constexpr std::uint16_t kProtocolVersion = 1;
inline constexpr std::size_t kFrameHeaderBytes = 24;
inline constexpr std::size_t kMaxPayload = std::size_t{1} << 20;
inline constexpr std::size_t kMaxFrameFds = 64;
inline constexpr std::size_t kMaxQueuedBytes = std::size_t{16} << 20;
inline constexpr std::size_t kMaxQueuedFds = 256;

struct FrameHeader {
  std::uint32_t length = 0;  ///< Of the payload. queue() fills it in.
  std::uint16_t version = kProtocolVersion;
  std::uint16_t op = 0;
  std::uint64_t id = 0;
  std::uint64_t incarnation = 0;
  friend bool operator==(const FrameHeader&, const FrameHeader&) = default;
};
std::array<std::byte, kFrameHeaderBytes> encode(const FrameHeader& header) noexcept;
FrameHeader decode_header(std::span<const std::byte, kFrameHeaderBytes> bytes) noexcept;

struct Frame {
  FrameHeader header;
  std::vector<std::byte> payload;
  std::vector<Fd> fds;
  bool fds_lost = false;  ///< It came with some that our table had no room for; `fds` is empty.
  bool plain = false;     ///< It came without the TLS that it should have come by.
};

class FdChannel {
 public:
  /// What comes through a socket that has a sink has the same.
  /// Throws bad_alloc: an empty deque of libstdc++ allocates.
  explicit FdChannel(Fd socket) : socket_(std::move(socket)) {}
  FdChannel(FdChannel&&) = default;
  FdChannel& operator=(FdChannel&&) = default;
  FdChannel(const FdChannel&) = delete;
  FdChannel& operator=(const FdChannel&) = delete;
  ~FdChannel();

  /// Takes the fds, and sends nothing yet. no_resource: too much is queued; nothing was taken.
  /// invalid_argument: payload or fds beyond what a frame holds.
  Status queue(const FrameHeader& header, std::span<const std::byte> payload, std::span<Fd> fds);
  /// Sends what the socket takes now. no_resource: the kernel has no room for more fds in flight,
  /// try again a little later. disconnected: the peer has closed, or its host has vanished.
  Status flush();
  bool wants_write() const noexcept {
    return !out_.empty() && !(tls_ != nullptr && tls_->waits_for_peer());
  }
  /// What has been read of the socket and not received: it tells nothing of that.
  bool has_buffered() const noexcept { return tls_ != nullptr && tls_->has_buffered(); }

  /// The next frame; none: it is not here yet. disconnected: as flush(). corrupt: this cannot be a
  /// stream of frames. permission_denied: the peer speaks TLS and this side does not, or it has
  /// another secret. no_resource: fds of the peer stand still in close(2), and it sends more.
  /// Frames that the peer sent before it closed come first. The version is the caller's to judge.
  Result<std::optional<Frame>> receive();

  /// All goes by TLS, before anything has. From a peer that has none what comes is `plain`; what
  /// was queued for it is dropped, and what is from then on goes without TLS: an error at most.
  void secure(std::unique_ptr<TlsEnd> tls) { tls_ = std::move(tls); }
  /// A frame that comes with a larger payload is corrupt: what a peer may send before it has shown
  /// who it is.
  void limit_payload(std::size_t bytes) noexcept { max_payload_ = bytes; }
  /// Whether a byte has come, or waits in the socket.
  bool has_received() const noexcept;
  /// What this connection costs in memory.
  std::size_t allocated_bytes() const noexcept { return in_.payload.capacity() + queued_bytes_; }
  /// What is queued from now on is sealed.
  void authenticate_sent(const MacKey& key) { sent_mac_.emplace(key); }
  /// What comes behind the frames that were received has to be. Else it is corrupt.
  void authenticate_received(const MacKey& key) { received_mac_.emplace(key); }

  int fd() const noexcept { return socket_.get(); }  ///< A loan, for poll.
  /// Behind the frames that were received, of which no byte too many was read.
  Fd release_socket() noexcept { return std::move(socket_); }
  std::unique_ptr<TlsEnd> release_tls() noexcept { return std::move(tls_); }

 private:
  struct Outgoing {
    std::vector<std::byte> bytes;  // header, payload, seal
    std::vector<Fd> fds;           // empty once the first byte has gone
    std::size_t sent = 0;
  };

  Status send_some(Outgoing& frame, bool& would_block);
  Status send_by_tls(Outgoing& frame, bool& would_block);
  Status cut_off(Status why);
  Result<std::size_t> read_some(std::span<std::byte> into, std::vector<Fd>& fds, bool& lost);
  Result<std::size_t> read_by_tls(std::span<std::byte> into);
  Status verify_tag();
  Status fail(Status why);

  Fd socket_;
  std::unique_ptr<TlsEnd> tls_;  // on loan it has the socket
  bool plain_ = false;           // instead of it
  std::optional<FrameAuthenticator> sent_mac_, received_mac_;
  std::deque<Outgoing> out_;
  std::size_t queued_bytes_ = 0, queued_fds_ = 0;

  std::array<std::byte, kFrameHeaderBytes> header_{};
  std::size_t header_got_ = 0, payload_got_ = 0, max_payload_ = kMaxPayload;
  bool received_any_ = false;
  Frame in_;    // what has come of the current frame
  Status cut_;  // why nothing can be sent any more: the kernel says so once, and then end-of-file
  Status failure_;
};

}  // namespace linkspan::base
