#include "base/fd_channel.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace linkspan::base {
namespace {

constexpr std::size_t kFirstPayload = std::size_t{4} << 10;
/// Maximum fds of one sendmsg (SCM_MAX_FD). With room for fewer the kernel closes the rest here.
constexpr std::size_t kMaxMessageFds = 253;

Status errno_status(const char* call, Where at = {}) { return Fd::from(call, -1, at).status(); }

/// Returns true if the other side has closed or its host is unreachable (tcp(7)).
bool is_end(int error) noexcept {
  return error == ECONNRESET || error == EPIPE || error == ETIMEDOUT || error == EHOSTUNREACH ||
         error == ENETUNREACH;
}

Status ended(int error, Where at = {}) {
  std::string why = "the peer's host is not reached: " + std::generic_category().message(error);
  if (error == EPIPE) why = "the peer has closed the socket";
  if (error == ECONNRESET) why = "the peer has reset the socket";
  return {Code::disconnected, Scope::peer, std::move(why), at};
}

}  // namespace

FdChannel::~FdChannel() {
  // A sink closes it later, but the peer must see the end now.
  if (socket_.valid() && socket_.sink() != nullptr) ::shutdown(socket_.get(), SHUT_RDWR);
}

Status FdChannel::queue(const FrameHeader& header, std::span<const std::byte> payload,
                        std::span<Fd> fds) {
  if (!failure_.ok()) return failure_;
  if (Status status = out_.check(payload, fds); !status.ok()) return status;
  Status status = out_.push(header, payload, fds);
  return status.ok() ? status : fail(status);
}

Status FdChannel::flush() {
  if (!failure_.ok()) return failure_;
  for (bool would_block = false; !out_.empty() && !would_block;)
    if (Status status = send_some(would_block); !status.ok()) return status;
  return {};
}

Status FdChannel::send_by_tls(bool& would_block) {
  const iovec part{out_.unsent().data(), out_.unsent().size()};
  const auto sent = tls_->send(std::span(&part, 1));
  if (sent.status().code() == Code::no_resource) return sent.status();
  if (!sent.ok()) {
    // A refused handshake has already read the bytes that would wake the reader, so the end of the
    // socket wakes it. Bytes of a peer without TLS are still to be read.
    if (!tls_->is_up() && tls_->came_plain().empty()) ::shutdown(socket_.get(), SHUT_RD);
    return cut_off(sent.status());
  }
  would_block = *sent == 0;
  out_.advance(*sent);
  return {};
}

Status FdChannel::send_some(bool& would_block) {
  if (tls_ != nullptr) return send_by_tls(would_block);
  iovec part{out_.unsent().data(), out_.unsent().size()};
  const std::span<const Fd> fds = out_.fds();
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::byte control[CMSG_SPACE(kMaxFrameFds * sizeof(int))] = {};
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    for (std::size_t i = 0; i < fds.size(); ++i) {
      const int raw = fds[i].get();
      std::memcpy(CMSG_DATA(rights) + i * sizeof raw, &raw, sizeof raw);
    }
  }
  const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent >= 0) {
    out_.advance(static_cast<std::size_t>(sent));
    return {};
  }
  switch (errno) {
    case EINTR:
      return {};
    case EAGAIN:
      would_block = true;
      return {};
    case ETOOMANYREFS:  // fds in flight of this user are limited by RLIMIT_NOFILE (unix(7))
    case ENOBUFS:
    case ENOMEM:
      return Status::no_resource();
    default:
      break;
  }
  if (!is_end(errno)) return fail(errno_status("sendmsg"));
  return cut_off(ended(errno));
}

/// Ends sending only: what the peer sent before it closed can still be received.
Status FdChannel::cut_off(Status why) {
  cut_ = std::move(why);
  out_.clear();
  return cut_;
}

Result<std::optional<Frame>> FdChannel::receive() {
  if (!failure_.ok()) return failure_;
  while (in_.header_got < kFrameHeaderBytes) {
    const Result<std::size_t> got =
        read_some(std::span(in_.header).subspan(in_.header_got), kMaxFrameFds);
    if (!got.ok()) return got.status();
    if (*got == 0) return std::optional<Frame>();
    in_.header_got += *got;
    received_any_ = true;
    if (in_.header_got < kFrameHeaderBytes) continue;
    if (tls_ == nullptr && begins_tls(in_.header))
      return Status(Code::permission_denied, Scope::peer,
                    std::string("the peer speaks TLS and this side does not") + kTlsRemedy);
    in_.frame.header = decode_header(in_.header);
    if (in_.frame.header.length > max_payload_)
      return fail({Code::corrupt, Scope::peer,
                   "a frame announces " + std::to_string(in_.frame.header.length) + " bytes, " +
                       std::to_string(max_payload_) + " at most may come here"});
  }
  const std::size_t all = in_.frame.header.length + (received_mac_ ? kMacTagBytes : std::size_t{0});
  while (in_.payload_got < all) {
    // Grow as bytes come, so that a header alone costs little memory whatever length it claims.
    if (in_.payload_got == in_.frame.payload.size())
      in_.frame.payload.resize(std::min(all, std::max(kFirstPayload, 2 * in_.payload_got)));
    const Result<std::size_t> got =
        read_some(std::span(in_.frame.payload).subspan(in_.payload_got), 0);
    if (!got.ok()) return got.status();
    if (*got == 0) return std::optional<Frame>();
    in_.payload_got += *got;
  }
  in_.header_got = in_.payload_got = 0;
  if (in_.frame.fds_lost) in_.frame.fds.clear();
  in_.frame.plain = plain_;
  if (Status status = received_mac_ ? verify_tag() : Status(); !status.ok()) return status;
  std::optional<Frame> whole(std::exchange(in_.frame, {}));
  if (whole->fds.empty()) in_.frame.fds.swap(whole->fds);  // the next frame needs the room
  return whole;
}

/// Verifies the MAC tag and removes it from the payload.
Status FdChannel::verify_tag() {
  const std::size_t bytes = in_.frame.payload.size() - kMacTagBytes;
  received_mac_->update(in_.header);
  received_mac_->update(std::span(in_.frame.payload).first(bytes));
  const auto seal = received_mac_->finish();
  if (!seal.ok()) return fail(seal.status());
  if (!same_secret(*seal, std::span(in_.frame.payload).subspan(bytes)))
    return fail({Code::corrupt, Scope::peer, "a frame whose seal is not its own"});
  in_.frame.payload.resize(bytes);
  return {};
}

/// Reads at least one byte; returns 0 if it would block. Adds received fds to those of the frame,
/// which has `max_fds` at most; zero: within a payload. Sets `fds_lost` if the kernel dropped some
/// because our table is full.
Result<std::size_t> FdChannel::read_some(std::span<std::byte> into, std::size_t max_fds) {
  if (tls_ != nullptr) return read_by_tls(into);
  std::vector<Fd>& fds = in_.frame.fds;
  fds.reserve(max_fds);  // what throws between recvmsg and the last Fd would leak the others
  for (;;) {
    iovec part{into.data(), into.size()};
    alignas(cmsghdr) std::byte control[CMSG_SPACE(kMaxMessageFds * sizeof(int))];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t got = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) return std::size_t{0};
      return fail(is_end(errno) ? ended(errno) : errno_status("recvmsg"));
    }
    // Own the received fds first, so that every return closes them.
    bool received_fds = false, too_many = false;
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
      if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
      for (std::size_t at = CMSG_LEN(0); at + sizeof(int) <= c->cmsg_len; at += sizeof(int)) {
        int raw = -1;
        std::memcpy(&raw, reinterpret_cast<std::byte*>(c) + at, sizeof raw);
        Fd received(raw);
        received.close_by(socket_.sink());
        received_fds = true;
        too_many |= fds.size() >= max_fds;
        if (!too_many) fds.push_back(std::move(received));
      }
    }
    if (received_fds && socket_.sink() != nullptr && socket_.sink()->full())
      return fail({Code::no_resource, Scope::peer,
                   "it sends more file descriptors while those before stand still in close(2)"});
    const bool lost = (message.msg_flags & MSG_CTRUNC) != 0;
    if (too_many || (lost && max_fds == 0))
      return fail({Code::corrupt, Scope::peer,
                   max_fds == 0 ? "fds inside a payload" : "more fds than a frame holds"});
    in_.frame.fds_lost |= lost;
    if (got == 0 && !cut_.ok()) return fail(cut_);
    if (got == 0)
      return fail({Code::disconnected, Scope::peer,
                   in_.header_got == 0 ? "the peer has closed the socket"
                                       : "the peer has closed the socket within a frame"});
    return static_cast<std::size_t>(got);
  }
}

Result<std::size_t> FdChannel::read_by_tls(std::span<std::byte> into) {
  const iovec part{into.data(), into.size()};
  // called only when bytes have arrived, though perhaps only bytes of the handshake
  received_any_ = true;
  const auto got = tls_->receive(std::span(&part, 1));
  if (const auto came = tls_->came_plain(); !came.empty()) {  // fewer bytes than a header
    std::ranges::copy(came, into.begin());
    const std::size_t bytes = came.size();
    out_.clear();
    plain_ = true;
    tls_.reset();
    return bytes;
  }
  if (got.status().code() == Code::disconnected && !cut_.ok()) return fail(cut_);
  return got.ok() ? got : fail(got.status());
}

bool FdChannel::has_received() const noexcept {
  std::byte next{};
  return received_any_ || ::recv(socket_.get(), &next, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

Status FdChannel::fail(Status why) {
  failure_ = std::move(why);
  out_.clear();
  in_ = {};
  ::shutdown(socket_.get(), SHUT_RDWR);
  return failure_;
}

}  // namespace linkspan::base
