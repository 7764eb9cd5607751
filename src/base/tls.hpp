// base/tls.hpp - TLS 1.3 over a socket that does not block, between two sides that know a secret.
//
// Of libssl: a key that the secret makes is the PSK that both sides have to have; psk_dhe_ke with
// TLS_AES_256_GCM_SHA384, so who learns the secret later reads nothing that was recorded. No
// certificates, no tickets, no early data. Where kernel and libssl have kTLS the kernel encrypts
// what is sent.
// The handshake goes on within send() and receive(). Of a record nothing is given before all of it
// is here and is what its seal says. A record is 16 KiB at most; small parts go together in one.
// Threads: a TlsContext immutable after construction, a TlsEnd externally synchronised.
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

#include "linkspan/status.hpp"

struct bio_method_st;
struct bio_st;
struct ssl_ctx_st;
struct ssl_session_st;
struct ssl_st;

namespace linkspan::base {

enum class TlsSide : std::uint8_t { connector, acceptor };

inline constexpr std::size_t kTlsRecord = std::size_t{16} << 10;
/// Of AES-GCM 2^24.5 whole records may go under one key (RFC 8446, 5.5).
inline constexpr std::uint64_t kTlsRecordsAKey = std::uint64_t{1} << 24;
inline constexpr const char* kTlsRemedy = ": set LINKSPAN_TLS=1 or EngineOptions::tls on both";

/// What all connections of an Engine have in common.
class TlsContext {
 public:
  /// internal: libssl cannot do it.
  static Result<std::shared_ptr<const TlsContext>> create(std::string_view secret);
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;
  ~TlsContext();

 private:
  friend class TlsEnd;
  TlsContext() = default;
  ssl_session_st* psk(ssl_st* ssl) const noexcept;

  ssl_ctx_st* ssl_ = nullptr;
  bio_method_st* socket_ = nullptr;
  std::array<std::byte, 32> key_{};
};

class TlsEnd {
 public:
  /// `socket` is a loan. Nothing was sent or received over it. internal: libssl cannot do it.
  static Result<std::unique_ptr<TlsEnd>> create(std::shared_ptr<const TlsContext> context,
                                                int socket, TlsSide side,
                                                std::uint64_t records_a_key = kTlsRecordsAKey);
  TlsEnd(const TlsEnd&) = delete;
  TlsEnd& operator=(const TlsEnd&) = delete;
  ~TlsEnd();

  /// How many bytes of the parts were taken; 0: the socket takes no more now, or the handshake
  /// waits for the peer. The next call has to begin with the byte behind those, for it may be on
  /// its way. disconnected: the peer has closed, or is not reached. permission_denied: it has
  /// another secret, or no TLS.
  Result<std::size_t> send(std::span<const iovec> parts);
  /// How many bytes came; 0: there are none now. Else as send(). corrupt: what came is not what
  /// the peer has sent. What came before the peer closed comes first.
  Result<std::size_t> receive(std::span<const iovec> parts);

  /// Bytes are here of which the socket tells nothing.
  bool has_buffered() const noexcept;
  /// The handshake goes on when bytes of the peer come, and send() does nothing before.
  bool waits_for_peer() const noexcept { return !done_ && waits_; }
  bool is_up() const noexcept { return done_; }  ///< The peer knows the secret.
  /// What came first, if the peer speaks no TLS; send() and receive() do not work then.
  std::span<const std::byte> came_plain() const noexcept;
  /// "TLS", or if the kernel encrypts what is sent "TLS (kTLS)".
  const char* name() const noexcept;

 private:
  TlsEnd(std::shared_ptr<const TlsContext> context, std::uint64_t records_a_key)
      : context_(std::move(context)), records_a_key_(records_a_key) {}
  friend class TlsContext;
  static int write_out(bio_st* bio, const char* bytes, int count);
  static int read_in(bio_st* bio, char* bytes, int count);
  static long control(bio_st* bio, int what, long number, void* pointer);

  Status go_on();
  Status failed();
  bool drain();
  Status encrypt(std::span<const iovec> parts);
  Status change_key();

  const std::shared_ptr<const TlsContext> context_;  // also the Engine's and other ends'
  const std::uint64_t records_a_key_;
  ssl_st* ssl_ = nullptr;
  int socket_ = -1;
  bool done_ = false, waits_ = false, more_ = false;
  Status refused_;             // why there is no handshake; whoever asks later hears the same
  std::size_t pending_ = 0;    // bytes of the user's that are on their way
  std::uint64_t records_ = 0;  // by the key that is
  std::vector<std::byte> gathered_;
  std::array<std::byte, 5> first_{};  // of what came
  std::size_t first_got_ = 0;
  bool ended_ = false, plain_ = false, message_of_kernel_ = false;
  int error_ = 0;             // of the last call of the kernel's
  std::vector<char> out_;     // what they have become,
  std::size_t out_sent_ = 0;  // and how much of it the socket has taken
};

/// Whether a connection that should bring frames has begun with a TLS handshake.
bool begins_tls(std::span<const std::byte> bytes) noexcept;

}  // namespace linkspan::base
