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

template <class T>
void put(std::byte* at, T value) noexcept {
  for (std::size_t i = 0; i < sizeof value; ++i) at[i] = static_cast<std::byte>(value >> 8 * i);
}

template <class T>
T get(const std::byte* at) noexcept {
  T value = 0;
  for (std::size_t i = 0; i < sizeof value; ++i)
    value = static_cast<T>(value | static_cast<T>(static_cast<T>(at[i]) << 8 * i));
  return value;
}

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

std::array<std::byte, kFrameHeaderBytes> encode(const FrameHeader& header) noexcept {
  std::array<std::byte, kFrameHeaderBytes> bytes{};
  put(bytes.data(), header.length);
  put(bytes.data() + 4, header.version);
  put(bytes.data() + 6, header.op);
  put(bytes.data() + 8, header.id);
  put(bytes.data() + 16, header.incarnation);
  return bytes;
}

FrameHeader decode_header(std::span<const std::byte, kFrameHeaderBytes> bytes) noexcept {
  return {get<std::uint32_t>(bytes.data()), get<std::uint16_t>(bytes.data() + 4),
          get<std::uint16_t>(bytes.data() + 6), get<std::uint64_t>(bytes.data() + 8),
          get<std::uint64_t>(bytes.data() + 16)};
}

Status FdChannel::queue(const FrameHeader& header, std::span<const std::byte> payload,
                        std::span<Fd> fds) {
  if (!failure_.ok()) return failure_;
  if (payload.size() > kMaxPayload || fds.size() > kMaxFrameFds)
    return {Code::invalid_argument, Scope::request,
            "a frame holds 1 MiB and 64 fds at most, not " + std::to_string(payload.size()) +
                " bytes and " + std::to_string(fds.size()) + " fds"};
  if (!std::ranges::all_of(fds, &Fd::valid))
    return {Code::invalid_argument, Scope::request, "an fd to send is closed"};
  const std::size_t bytes =
      kFrameHeaderBytes + payload.size() + (sent_mac_ ? kMacTagBytes : std::size_t{0});
  if (queued_bytes_ + bytes > kMaxQueuedBytes || queued_fds_ + fds.size() > kMaxQueuedFds)
    return Status::no_resource();

  FrameHeader filled = header;
  filled.length = static_cast<std::uint32_t>(payload.size());
  OutgoingFrame made;
  made.bytes.reserve(bytes);
  made.fds.reserve(fds.size());
  out_.push_back(std::move(made));  // nothing below throws
  OutgoingFrame& frame = out_.back();
  const auto head = encode(filled);
  frame.bytes.insert(frame.bytes.end(), head.begin(), head.end());
  frame.bytes.insert(frame.bytes.end(), payload.begin(), payload.end());
  if (sent_mac_) {
    sent_mac_->update(frame.bytes);
    const auto seal = sent_mac_->finish();
    if (!seal.ok()) return fail(seal.status());
    frame.bytes.insert(frame.bytes.end(), seal->begin(), seal->end());
  }
  for (Fd& fd : fds) frame.fds.push_back(std::move(fd));
  queued_bytes_ += bytes;
  queued_fds_ += fds.size();
  return {};
}

Status FdChannel::flush() {
  if (!failure_.ok()) return failure_;
  while (!out_.empty()) {
    OutgoingFrame& frame = out_.front();
    bool would_block = false;
    if (Status status = send_some(frame, would_block); !status.ok()) return status;
    if (would_block) break;
    if (frame.sent < frame.bytes.size()) continue;
    queued_bytes_ -= frame.bytes.size();
    out_.pop_front();
  }
  return {};
}

Status FdChannel::send_by_tls(OutgoingFrame& frame, bool& would_block) {
  const iovec part{frame.bytes.data() + frame.sent, frame.bytes.size() - frame.sent};
  const auto sent = tls_->send(std::span(&part, 1));
  if (sent.status().code() == Code::no_resource) return sent.status();
  if (!sent.ok()) {
    // A refused handshake has already read the bytes that would wake the reader, so the end of the
    // socket wakes it. Bytes of a peer without TLS are still to be read.
    if (!tls_->is_up() && tls_->came_plain().empty()) ::shutdown(socket_.get(), SHUT_RD);
    return cut_off(sent.status());
  }
  would_block = *sent == 0;
  frame.sent += *sent;
  return {};
}

Status FdChannel::send_some(OutgoingFrame& frame, bool& would_block) {
  if (tls_ != nullptr) return send_by_tls(frame, would_block);
  iovec part{frame.bytes.data() + frame.sent, frame.bytes.size() - frame.sent};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::byte control[CMSG_SPACE(kMaxFrameFds * sizeof(int))] = {};
  if (!frame.fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(frame.fds.size() * sizeof(int));
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(frame.fds.size() * sizeof(int));
    for (std::size_t i = 0; i < frame.fds.size(); ++i) {
      const int raw = frame.fds[i].get();
      std::memcpy(CMSG_DATA(rights) + i * sizeof raw, &raw, sizeof raw);
    }
  }
  const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent >= 0) {
    frame.sent += static_cast<std::size_t>(sent);
    queued_fds_ -= frame.fds.size();
    frame.fds.clear();  // they went with the first byte
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
  queued_bytes_ = queued_fds_ = 0;
  return cut_;
}

Result<std::optional<Frame>> FdChannel::receive() {
  if (!failure_.ok()) return failure_;
  while (header_got_ < kFrameHeaderBytes) {
    const Result<std::size_t> got =
        read_some(std::span(header_).subspan(header_got_), in_.fds, in_.fds_lost);
    if (!got.ok()) return got.status();
    if (*got == 0) return std::optional<Frame>();
    header_got_ += *got;
    received_any_ = true;
    if (in_.fds.size() > kMaxFrameFds)
      return fail({Code::corrupt, Scope::peer, "more fds than a frame holds"});
    if (header_got_ < kFrameHeaderBytes) continue;
    if (tls_ == nullptr && begins_tls(header_))
      return Status(Code::permission_denied, Scope::peer,
                    std::string("the peer speaks TLS and this side does not") + kTlsRemedy);
    in_.header = decode_header(header_);
    if (in_.header.length > max_payload_)
      return fail({Code::corrupt, Scope::peer,
                   "a frame announces " + std::to_string(in_.header.length) + " bytes, " +
                       std::to_string(max_payload_) + " at most may come here"});
  }
  const std::size_t all = in_.header.length + (received_mac_ ? kMacTagBytes : std::size_t{0});
  while (payload_got_ < all) {
    // Grow as bytes come, so that a header alone costs little memory whatever length it claims.
    if (payload_got_ == in_.payload.size())
      in_.payload.resize(std::min(all, std::max(kFirstPayload, 2 * payload_got_)));
    std::vector<Fd> strays;
    bool lost = false;
    const Result<std::size_t> got =
        read_some(std::span(in_.payload).subspan(payload_got_), strays, lost);
    if (!got.ok()) return got.status();
    if (lost || !strays.empty()) return fail({Code::corrupt, Scope::peer, "fds inside a payload"});
    if (*got == 0) return std::optional<Frame>();
    payload_got_ += *got;
  }
  header_got_ = payload_got_ = 0;
  if (in_.fds_lost) in_.fds.clear();
  in_.plain = plain_;
  if (Status status = received_mac_ ? verify_tag() : Status(); !status.ok()) return status;
  return std::optional<Frame>(std::exchange(in_, {}));
}

/// Verifies the MAC tag and removes it from the payload.
Status FdChannel::verify_tag() {
  const std::size_t bytes = in_.payload.size() - kMacTagBytes;
  received_mac_->update(header_);
  received_mac_->update(std::span(in_.payload).first(bytes));
  const auto seal = received_mac_->finish();
  if (!seal.ok()) return fail(seal.status());
  if (!same_secret(*seal, std::span(in_.payload).subspan(bytes)))
    return fail({Code::corrupt, Scope::peer, "a frame whose seal is not its own"});
  in_.payload.resize(bytes);
  return {};
}

/// Reads at least one byte; returns 0 if it would block. Sets `lost` if the kernel dropped fds
/// because our table is full.
Result<std::size_t> FdChannel::read_some(std::span<std::byte> into, std::vector<Fd>& fds,
                                         bool& lost) {
  if (tls_ != nullptr) return read_by_tls(into);
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
    const std::size_t before = fds.size();
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
      if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
      for (std::size_t at = CMSG_LEN(0); at + sizeof(int) <= c->cmsg_len; at += sizeof(int)) {
        int raw = -1;
        std::memcpy(&raw, reinterpret_cast<std::byte*>(c) + at, sizeof raw);
        fds.emplace_back(raw).close_by(socket_.sink());
      }
    }
    if (fds.size() != before && socket_.sink() != nullptr && socket_.sink()->full())
      return fail({Code::no_resource, Scope::peer,
                   "it sends more file descriptors while those before stand still in close(2)"});
    if ((message.msg_flags & MSG_CTRUNC) != 0) lost = true;
    if (got == 0 && !cut_.ok()) return fail(cut_);
    if (got == 0)
      return fail({Code::disconnected, Scope::peer,
                   header_got_ == 0 ? "the peer has closed the socket"
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
    queued_bytes_ = queued_fds_ = 0;
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
  queued_bytes_ = queued_fds_ = 0;
  in_ = {};
  ::shutdown(socket_.get(), SHUT_RDWR);
  return failure_;
}

}  // namespace linkspan::base
