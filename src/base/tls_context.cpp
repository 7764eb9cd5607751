// TlsContext: libssl's settings and the key, shared by all TLS connections of an Engine.
#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <cstring>
#include <string>

#include "base/frame_authenticator.hpp"
#include "base/tls.hpp"

namespace linkspan::base {
namespace {

constexpr char kIdentity[] = "linkspan";
constexpr char kCipher[] = "TLS_AES_256_GCM_SHA384";
constexpr unsigned char kCipherId[] = {0x13, 0x02};  // the same (RFC 8446, B.4)
constexpr std::size_t kReadAhead = std::size_t{64} << 10;

}  // namespace

/// Returns an error with libssl's reason. Clears libssl's error queue, which belongs to the thread
/// and so also to the user.
Status TlsContext::failed(const char* call) {
  char why[256] = "no reason given";
  if (const unsigned long error = ERR_peek_error(); error != 0)
    ERR_error_string_n(error, why, sizeof why);
  ERR_clear_error();
  return {Code::internal, Scope::process, std::string("libssl: ") + call + ": " + why};
}

Result<std::shared_ptr<const TlsContext>> TlsContext::create(std::string_view secret) {
  constexpr std::string_view kLabel = "linkspan tls";
  const auto key = hmac(std::as_bytes(std::span(secret)), {std::as_bytes(std::span(kLabel))});
  if (!key.ok()) return key.status();
  std::shared_ptr<TlsContext> made(new TlsContext);
  made->key_ = *key;
  made->ssl_ = SSL_CTX_new(TLS_method());
  static const int type = BIO_get_new_index();
  made->socket_ = BIO_meth_new(type | BIO_TYPE_FILTER, "linkspan socket");
  if (made->ssl_ == nullptr || made->socket_ == nullptr) return failed("SSL_CTX_new");
  if (!TlsSocket::set_callbacks(made->socket_)) return failed("BIO_meth_new");
  SSL_CTX* const ssl = made->ssl_;
  if (SSL_CTX_set_min_proto_version(ssl, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_max_proto_version(ssl, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(ssl, kCipher) != 1 || SSL_CTX_set_num_tickets(ssl, 0) != 1 ||
      SSL_CTX_set_app_data(ssl, made.get()) != 1)
    return failed("TLS 1.3 with TLS_AES_256_GCM_SHA384");
  SSL_CTX_set_session_cache_mode(ssl, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(ssl, SSL_OP_ENABLE_KTLS | SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_default_read_buffer_len(ssl, kReadAhead);
  SSL_CTX_set_psk_use_session_callback(ssl, [](SSL* of, const EVP_MD*, const unsigned char** id,
                                               std::size_t* bytes, SSL_SESSION** session) {
    *id = reinterpret_cast<const unsigned char*>(kIdentity);
    *bytes = sizeof kIdentity - 1;
    *session = static_cast<TlsContext*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(of)))->psk(of);
    return *session != nullptr ? 1 : 0;
  });
  SSL_CTX_set_psk_find_session_callback(
      ssl, [](SSL* of, const unsigned char* id, std::size_t bytes, SSL_SESSION** session) {
        *session = nullptr;  // also the answer for any other identity
        if (bytes != sizeof kIdentity - 1 || std::memcmp(id, kIdentity, bytes) != 0) return 1;
        *session = static_cast<TlsContext*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(of)))->psk(of);
        return *session != nullptr ? 1 : 0;
      });
  return std::shared_ptr<const TlsContext>(std::move(made));
}

TlsContext::~TlsContext() {
  SSL_CTX_free(ssl_);
  BIO_meth_free(socket_);
  OPENSSL_cleanse(key_.data(), key_.size());
}

/// Returns a session with the key, which libssl frees. Null: no memory.
SSL_SESSION* TlsContext::psk(SSL* ssl) const noexcept {
  SSL_SESSION* const session = SSL_SESSION_new();
  if (session != nullptr &&
      SSL_SESSION_set1_master_key(session, reinterpret_cast<const unsigned char*>(key_.data()),
                                  key_.size()) == 1 &&
      SSL_SESSION_set_cipher(session, SSL_CIPHER_find(ssl, kCipherId)) == 1 &&
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1)
    return session;
  SSL_SESSION_free(session);
  return nullptr;
}

}  // namespace linkspan::base
