// base/frame_authenticator.hpp - what shows that bytes come from who knows a key, unchanged and in
// order.
//
// Of libcrypto: HMAC-SHA256 (RFC 2104) for the words of a handshake, GMAC with AES-256 (NIST SP
// 800-38D) for what follows, which keeps up with a network card where HMAC does not.
// Threads: values; a FrameAuthenticator externally synchronised.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>

#include "base/fd.hpp"
#include "base/tls.hpp"
#include "linkspan/status.hpp"

struct evp_cipher_ctx_st;

namespace linkspan::base {

using MacKey = std::array<std::byte, 32>;
inline constexpr std::size_t kMacTagBytes = 16;
using MacTag = std::array<std::byte, kMacTagBytes>;

/// HMAC-SHA256 of all parts, as if they were one. internal: libcrypto has none.
Result<MacKey> hmac(std::span<const std::byte> key,
                    std::initializer_list<std::span<const std::byte>> parts);

/// Whoever guesses learns nothing from how long it takes. False: also of another length.
bool same_secret(std::span<const std::byte> a, std::span<const std::byte> b) noexcept;

/// Seals of what goes one way, by GMAC. The n-th of one side is the n-th of the other: what was
/// changed, left out, repeated or comes from elsewhere has another.
class FrameAuthenticator {
 public:
  /// `key` is used for one FrameAuthenticator on each side, never for two.
  explicit FrameAuthenticator(const MacKey& key);

  void update(std::span<const std::byte> bytes) noexcept;
  /// Of all bytes since the last one. internal: libcrypto has no GMAC.
  Result<MacTag> finish();

 private:
  struct Free {
    void operator()(evp_cipher_ctx_st* context) const noexcept;
  };
  void begin() noexcept;

  std::unique_ptr<evp_cipher_ctx_st, Free> context_;
  std::uint64_t count_ = 0;
  bool works_ = false;
};

/// One for each direction.
struct MacKeys {
  MacKey out{}, in{};
};

/// A connection, and how what goes over it is sealed: by keys, by TLS, or not at all.
struct AuthenticatedSocket {
  Fd socket;
  std::optional<MacKeys> keys{};
  std::unique_ptr<TlsEnd> tls{};  ///< Its handshake is over.
};

}  // namespace linkspan::base
