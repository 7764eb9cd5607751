#include "base/tls_socket.hpp"

#include <openssl/bio.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

namespace linkspan::base {
namespace {

// Commands that libssl sends to its BIO (bio.h, in comments): kLeaveToKernel asks the kernel to
// encrypt (number 1) or decrypt (0). kNextIsMessage and kNextIsData announce what is written next
// while the kernel encrypts: an alert or another message that is not data, or data.
constexpr int kLeaveToKernel = 72, kNextIsMessage = 74, kNextIsData = 75;

bool is_record(std::span<const std::byte> first) noexcept {
  const auto at = [&](std::size_t i) { return std::to_integer<unsigned>(first[i]); };
  return at(0) >= 20 && at(0) <= 23 && at(1) == 3 && at(2) >= 1 && at(2) <= 4;
}

}  // namespace

bool begins_tls(std::span<const std::byte> bytes) noexcept {
  return bytes.size() >= 6 && is_record(bytes) && bytes[0] == std::byte{22} &&
         bytes[5] == std::byte{1};  // a ClientHello
}

BIO* TlsSocket::create_bio(const BIO_METHOD* method) {
  BIO* const ours = BIO_new(method);
  BIO* const kernels = BIO_new_socket(socket_, BIO_NOCLOSE);
  if (ours == nullptr || kernels == nullptr) {
    BIO_free(ours);
    BIO_free(kernels);
    return nullptr;
  }
  BIO_set_data(ours, this);
  return BIO_push(ours, kernels);
}

bool TlsSocket::set_callbacks(BIO_METHOD* method) {
  return BIO_meth_set_write(method, &TlsSocket::write_out) == 1 &&
         BIO_meth_set_read(method, &TlsSocket::read_in) == 1 &&
         BIO_meth_set_ctrl(method, &TlsSocket::control) == 1;
}

TlsSocket& TlsSocket::of(BIO* bio) { return *static_cast<TlsSocket*>(BIO_get_data(bio)); }

/// Collects the bytes that libssl writes, so that one call sends several records. No exception may
/// leave through the frames of libssl, which writes the same bytes again later.
int TlsSocket::write_out(BIO* bio, const char* bytes, int count) {
  TlsSocket& self = of(bio);
  BIO_clear_retry_flags(bio);
  // While the kernel encrypts, an alert would need a control message to the kernel. It is dropped,
  // because the end of the socket suffices for the peer.
  if (std::exchange(self.message_of_kernel_, false)) return count;
  try {
    self.out_.insert(self.out_.end(), bytes, bytes + count);
  } catch (const std::bad_alloc&) {
    self.error_ = ENOMEM;
    BIO_set_retry_write(bio);
    return -1;
  }
  return count;
}

bool TlsSocket::drain() {
  while (out_sent_ < out_.size()) {
    const ssize_t sent = ::send(socket_, out_.data() + out_sent_, out_.size() - out_sent_,
                                MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) {
      if (errno != EAGAIN && errno != EWOULDBLOCK) error_ = errno;
      return false;
    }
    out_sent_ += static_cast<std::size_t>(sent);
  }
  out_.clear();
  out_sent_ = 0;
  return true;
}

int TlsSocket::read_in(BIO* bio, char* bytes, int count) {
  TlsSocket& self = of(bio);
  const std::size_t missing = self.first_.size() - self.first_got_;
  if (missing != 0) count = std::min(count, static_cast<int>(missing));
  BIO_clear_retry_flags(bio);
  errno = 0;
  const int got = BIO_read(BIO_next(bio), bytes, count);
  if (got <= 0) {
    BIO_copy_next_retry(bio);
    if (BIO_should_retry(bio)) return -1;
    if (got < 0) self.error_ = errno;
    self.ended_ |= got == 0;
    return got;
  }
  if (missing != 0) {
    std::memcpy(self.first_.data() + self.first_got_, bytes, static_cast<std::size_t>(got));
    self.first_got_ += static_cast<std::size_t>(got);
    self.plain_ = self.first_got_ >= 3 && !is_record(self.first_);
    if (self.plain_) return -1;
  }
  return got;
}

long TlsSocket::control(BIO* bio, int what, long number, void* pointer) {
  TlsSocket& self = of(bio);
  if (what == BIO_CTRL_FLUSH) {
    BIO_clear_retry_flags(bio);
    if (self.drain()) return 1;
    if (self.error_ == 0 || self.lacks_memory()) BIO_set_retry_write(bio);
    return -1;
  }
  // Refuses decryption in the kernel, because a key update of the peer could not be handled there.
  if (what == kLeaveToKernel && number == 0) return 0;
  if (what != kNextIsMessage && what != kNextIsData)
    return BIO_ctrl(BIO_next(bio), what, number, pointer);
  self.message_of_kernel_ = what == kNextIsMessage;
  return 0;
}

std::span<const std::byte> TlsSocket::came_plain() const noexcept {
  return std::span(first_).first(plain_ ? first_got_ : 0);
}

}  // namespace linkspan::base
