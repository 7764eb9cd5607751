#include "base/tls.hpp"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>

namespace linkspan::base {
namespace {

constexpr std::size_t kOneCall = std::size_t{64} << 10;
constexpr std::size_t kKeyUpdate = 5;  // bytes of the message (RFC 8446, 4.6.3)
/// Returns true for the reasons that a different secret causes, on the side that verifies the
/// binder and on the side that receives its alert.
bool is_of_secrets(int reason) noexcept {
  return reason == SSL_R_BINDER_DOES_NOT_VERIFY ||
         reason == SSL_AD_REASON_OFFSET + SSL_AD_ILLEGAL_PARAMETER ||
         reason == SSL_AD_REASON_OFFSET + SSL_AD_DECRYPT_ERROR;
}

Status cut(int error) {
  const char* const what = error == EPIPE        ? "the peer has closed the socket"
                           : error == ECONNRESET ? "the peer has reset the socket"
                                                 : nullptr;
  if (what != nullptr) return {Code::disconnected, Scope::peer, what};
  return {Code::disconnected, Scope::peer,
          "the peer's host is not reached: " + std::generic_category().message(error)};
}

}  // namespace

Result<std::unique_ptr<TlsEnd>> TlsEnd::create(std::shared_ptr<const TlsContext> context,
                                               int socket, TlsSide side,
                                               std::uint64_t records_a_key) {
  std::unique_ptr<TlsEnd> made(new TlsEnd(std::move(context), socket, records_a_key));
  made->ssl_ = SSL_new(made->context_->ssl_);
  BIO* const bio = made->socket_.create_bio(made->context_->socket_);
  if (made->ssl_ == nullptr || bio == nullptr) {
    BIO_free_all(bio);
    return TlsContext::failed("SSL_new");
  }
  SSL_set_bio(made->ssl_, bio, bio);
  if (side == TlsSide::acceptor) {
    SSL_set_accept_state(made->ssl_);
    return made;
  }
  SSL_set_connect_state(made->ssl_);
  // Refuses a certificate in the place of the PSK: neither side is identified by a certificate.
  SSL_set_verify(made->ssl_, SSL_VERIFY_PEER, [](int, X509_STORE_CTX*) { return 0; });
  return made;
}

TlsEnd::~TlsEnd() { SSL_free(ssl_); }

const char* TlsEnd::name() const noexcept {
  return BIO_get_ktls_send(SSL_get_wbio(ssl_)) ? "TLS (kTLS)" : "TLS";
}

/// Does not count a part of a record: the socket reports the rest of it.
bool TlsEnd::has_buffered() const noexcept { return more_ && SSL_has_pending(ssl_) == 1; }

/// Continues the handshake as far as bytes and room allow.
Status TlsEnd::go_on() {
  if (done_ || !refused_.ok()) return refused_;
  ERR_clear_error();
  socket_.clear_error();
  const int returned = SSL_do_handshake(ssl_);
  if (returned != 1) {
    const int why = SSL_get_error(ssl_, returned);
    waits_ = why == SSL_ERROR_WANT_READ;
    if (!waits_ && why != SSL_ERROR_WANT_WRITE) refused_ = failed();
    return refused_;
  }
  if (SSL_session_reused(ssl_) != 1)  // libssl says "reused" for a PSK
    return refused_ = {Code::permission_denied, Scope::peer,
                       "the peer did not show by TLS that it knows the secret"};
  done_ = true;
  // Reading ahead earlier would take bytes that follow the handshake out of the socket, which then
  // would report no event for them.
  SSL_set_read_ahead(ssl_, 1);
  return {};
}

/// Returns the reason why the last call of libssl failed.
Status TlsEnd::failed() {
  const unsigned long error = ERR_peek_error();
  const char* const reason = ERR_reason_error_string(error);
  const std::string words = reason != nullptr ? reason : "it ended";
  ERR_clear_error();
  if (!socket_.came_plain().empty())
    return {Code::permission_denied, Scope::peer,
            std::string("the peer speaks no TLS and this side does") + kTlsRemedy};
  if (socket_.error() != 0) return cut(socket_.error());
  if (socket_.ended())
    return {Code::disconnected, Scope::peer,
            done_ ? "the peer has closed the socket"
                  : "the peer has closed the socket within the TLS handshake"};
  if (!done_)
    return {Code::permission_denied, Scope::peer,
            (is_of_secrets(ERR_GET_REASON(error)) ? "the peer has another secret than this side: "
                                                  : "no TLS with the peer: ") +
                words};
  return {Code::corrupt, Scope::peer, "not what the peer has sent by TLS: " + words};
}

Result<std::size_t> TlsEnd::send(std::span<const iovec> parts) {
  if (waits_for_peer()) return std::size_t{0};
  if (Status status = go_on(); !status.ok()) return status;
  if (!done_) return std::size_t{0};
  if (pending_ == 0) {
    Status status = change_key();
    if (status.ok()) status = encrypt(parts);
    if (!status.ok()) return status;
  }
  socket_.clear_error();
  if (socket_.drain()) return std::exchange(pending_, 0);
  if (socket_.error() == 0) return std::size_t{0};
  return socket_.lacks_memory() ? Status::no_resource() : cut(socket_.error());
}

/// Encrypts as many bytes of the parts as one call sends.
Status TlsEnd::encrypt(std::span<const iovec> parts) {
  // `at` is an offset in the first part
  for (std::size_t at = 0; !parts.empty() && pending_ < kOneCall;) {
    const auto* data = static_cast<const std::byte*>(parts.front().iov_base) + at;
    std::size_t bytes = std::min(parts.front().iov_len - at, kTlsRecord);
    if (bytes < kTlsRecord && parts.size() > 1) {
      gathered_.resize(kTlsRecord);
      bytes = 0;
      for (std::size_t i = 0, from = at; i < parts.size() && bytes < kTlsRecord; ++i, from = 0) {
        const std::size_t some = std::min(parts[i].iov_len - from, kTlsRecord - bytes);
        std::memcpy(gathered_.data() + bytes,
                    static_cast<const std::byte*>(parts[i].iov_base) + from, some);
        bytes += some;
      }
      data = gathered_.data();
    }
    if (bytes == 0) return {};
    socket_.reserve(bytes);
    ERR_clear_error();
    socket_.clear_error();
    std::size_t sent = 0;
    if (SSL_write_ex(ssl_, data, bytes, &sent) != 1) return failed();
    ++records_;
    pending_ += sent;
    for (at += sent; !parts.empty() && at >= parts.front().iov_len; parts = parts.subspan(1))
      at -= parts.front().iov_len;
  }
  return {};
}

/// Changes the key once enough records were sent, but only while the socket has room, so that
/// receiving does not wait for room. A kernel that encrypts keeps its key.
Status TlsEnd::change_key() {
  if (records_ < records_a_key_) return {};
  pollfd room{.fd = socket_.fd(), .events = POLLOUT, .revents = 0};
  if (BIO_get_ktls_send(SSL_get_wbio(ssl_)) || ::poll(&room, 1, 0) != 1) return {};
  socket_.reserve(kKeyUpdate);
  ERR_clear_error();
  socket_.clear_error();
  if (SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED) != 1 || SSL_do_handshake(ssl_) != 1)
    return failed();
  records_ = 0;
  return {};
}

Result<std::size_t> TlsEnd::receive(std::span<const iovec> parts) {
  if (Status status = go_on(); !status.ok()) return status;
  std::size_t received = 0;
  for (const iovec& part : parts) {
    for (std::size_t at = 0; done_ && at < part.iov_len;) {
      if (received != 0 && SSL_has_pending(ssl_) != 1) return received;
      ERR_clear_error();
      socket_.clear_error();
      std::size_t got = 0;
      const int returned =
          SSL_read_ex(ssl_, static_cast<std::byte*>(part.iov_base) + at, part.iov_len - at, &got);
      if (returned != 1) {
        const int why = SSL_get_error(ssl_, returned);
        more_ = false;
        if (why == SSL_ERROR_ZERO_RETURN) socket_.end();
        if (received != 0 || why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE)
          return received;
        return failed();
      }
      more_ = true;
      at += got;
      received += got;
    }
  }
  return received;
}

}  // namespace linkspan::base
