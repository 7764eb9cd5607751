// base/tls.hpp - TLS 1.3 over a non-blocking socket, between two sides that share a secret.
//
// Uses libssl with a PSK derived from the secret and psk_dhe_ke with TLS_AES_256_GCM_SHA384, so a
// party that learns the secret later cannot decrypt recorded traffic. No certificates, no tickets,
// no early data. Where kernel and libssl have kTLS, the kernel encrypts what is sent.
// The handshake proceeds within send() and receive(). No byte of a record is delivered before the
// whole record has arrived and is authentic. A record has at most 16 KiB; small parts share one.
// Threads: a TlsContext is immutable after construction, a TlsEnd externally synchronised.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/tls_socket.hpp"
#include "linkspan/status.hpp"

struct bio_method_st;
struct ssl_ctx_st;
struct ssl_session_st;
struct ssl_st;

namespace linkspan::base {

enum class TlsSide : std::uint8_t { connector, acceptor };

inline constexpr std::size_t kTlsRecord = std::size_t{16} << 10;
/// AES-GCM allows 2^24.5 full records under one key (RFC 8446, 5.5).
inline constexpr std::uint64_t kTlsRecordsAKey = std::uint64_t{1} << 24;
inline constexpr const char* kTlsRemedy =
    ": set LINKSPAN_SECURITY=encrypted or EngineOptions::security on both";

/// State that all connections of an Engine share.
class TlsContext {
 public:
  /// Derives the key. internal: libssl failed.
  static Result<std::shared_ptr<const TlsContext>> create(std::string_view secret);
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;
  ~TlsContext();

 private:
  friend class TlsEnd;
  TlsContext() = default;
  static Status failed(const char* call);
  ssl_session_st* psk(ssl_st* ssl) const noexcept;

  ssl_ctx_st* ssl_ = nullptr;
  bio_method_st* socket_ = nullptr;
  std::array<std::byte, 32> key_{};
};

class TlsEnd {
 public:
  /// Borrows `socket`, over which nothing was sent or received yet. internal: libssl failed.
  static Result<std::unique_ptr<TlsEnd>> create(std::shared_ptr<const TlsContext> context,
                                                int socket, TlsSide side,
                                                std::uint64_t records_a_key = kTlsRecordsAKey);
  TlsEnd(const TlsEnd&) = delete;
  TlsEnd& operator=(const TlsEnd&) = delete;
  ~TlsEnd();

  /// Returns how many bytes of the parts were accepted; 0 if the socket is full or the handshake
  /// waits for the peer. The next call must continue after those bytes, because the following ones
  /// may be encrypted already. disconnected: the peer closed or is unreachable. permission_denied:
  /// it has another secret, or no TLS.
  Result<std::size_t> send(std::span<const iovec> parts);
  /// Returns how many bytes were received; 0 if there are none now. Bytes that the peer sent before
  /// it closed come first. Errors as send(). corrupt: the data is not what the peer sent.
  Result<std::size_t> receive(std::span<const iovec> parts);

  /// Returns true if received bytes wait that poll(2) does not report.
  bool has_buffered() const noexcept;
  /// Returns true if the handshake waits for the peer; send() does nothing until then.
  bool waits_for_peer() const noexcept { return !done_ && waits_; }
  bool is_up() const noexcept {
    return done_;
  }  ///< The handshake is complete: the peer knows the secret.
  /// Returns the first bytes if the peer uses no TLS; send() and receive() fail then.
  std::span<const std::byte> came_plain() const noexcept { return socket_.came_plain(); }
  /// Returns "TLS", or "TLS (kTLS)" if the kernel encrypts.
  const char* name() const noexcept;

 private:
  TlsEnd(std::shared_ptr<const TlsContext> context, int socket, std::uint64_t records_a_key)
      : context_(std::move(context)), records_a_key_(records_a_key), socket_(socket) {}

  Status go_on();
  Status failed();
  Status encrypt(std::span<const iovec> parts);
  Status change_key();

  const std::shared_ptr<const TlsContext> context_;  // shared with the Engine and other TlsEnds
  const std::uint64_t records_a_key_;
  TlsSocket socket_;
  ssl_st* ssl_ = nullptr;  // ends before socket_
  bool done_ = false, waits_ = false, more_ = false;
  Status refused_;                   // why the handshake failed; later calls return the same
  std::size_t pending_ = 0;          // accepted bytes that send() has not returned yet
  std::uint64_t records_ = 0;        // encrypted by the current key
  std::vector<std::byte> gathered_;  // small parts, joined into one record
};

}  // namespace linkspan::base
