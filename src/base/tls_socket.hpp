// base/tls_socket.hpp - the socket of a TlsEnd as libssl sees it, a BIO: collects what is sent, and
// detects a peer without TLS by its first bytes.
//
// Threads: externally synchronised.
#pragma once

#include <array>
#include <cerrno>
#include <cstddef>
#include <span>
#include <vector>

struct bio_method_st;
struct bio_st;

namespace linkspan::base {

class TlsSocket {
 public:
  explicit TlsSocket(int socket) : socket_(socket) {}  ///< Borrows it.
  TlsSocket(const TlsSocket&) = delete;
  TlsSocket& operator=(const TlsSocket&) = delete;
  ~TlsSocket() = default;

  /// Makes the BIOs of `method` call the functions below. Returns false if libssl failed.
  static bool set_callbacks(bio_method_st* method);
  /// Returns a BIO over this object, which outlives it. Null: libssl failed.
  bio_st* create_bio(const bio_method_st* method);

  /// Makes room for a record with `bytes` of data. libssl cannot take back one that it has begun.
  /// Throws bad_alloc.
  void reserve(std::size_t bytes) { out_.reserve(out_.size() + bytes + kMaxExpansion); }
  /// Sends the collected bytes, as libssl's own socket BIO would, but without SIGPIPE. Returns
  /// false if the socket is full or failed; a failure sets error().
  bool drain();
  int fd() const noexcept { return socket_; }
  /// Returns errno of the last failed call since clear_error(), or 0.
  int error() const noexcept { return error_; }
  void clear_error() noexcept { error_ = 0; }
  bool lacks_memory() const noexcept { return error_ == ENOBUFS || error_ == ENOMEM; }
  bool ended() const noexcept { return ended_; }  ///< Returns true if the peer has closed it.
  void end() noexcept { ended_ = true; }          ///< Notes that the peer has closed its TLS.
  /// Returns the first bytes if the peer uses no TLS.
  std::span<const std::byte> came_plain() const noexcept;

 private:
  static constexpr std::size_t kMaxExpansion = 5 + 256;  // of a record (RFC 8446, 5.2)

  static TlsSocket& of(bio_st* bio);
  static int write_out(bio_st* bio, const char* bytes, int count);
  static int read_in(bio_st* bio, char* bytes, int count);
  static long control(bio_st* bio, int what, long number, void* pointer);

  const int socket_;
  std::array<std::byte, 5> first_{};  // the first bytes received
  std::size_t first_got_ = 0;
  bool ended_ = false, plain_ = false, message_of_kernel_ = false;
  int error_ = 0;
  std::vector<char> out_;     // encrypted bytes for the socket
  std::size_t out_sent_ = 0;  // of `out_`
};

/// Returns true if the bytes begin a TLS handshake instead of frames.
bool begins_tls(std::span<const std::byte> bytes) noexcept;

}  // namespace linkspan::base
