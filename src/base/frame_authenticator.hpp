// base/frame_authenticator.hpp - message authentication codes: bytes come from a side that knows a
// key, unchanged and in order.
//
// From libcrypto: HMAC-SHA256 (RFC 2104) for handshakes, and GMAC with AES-256 (NIST SP 800-38D)
// for what follows, because GMAC keeps up with a network card and HMAC does not.
// Threads: values; a FrameAuthenticator is externally synchronised.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/fd.hpp"
#include "base/tls.hpp"
#include "linkspan/status.hpp"

struct evp_cipher_ctx_st;

namespace linkspan::base {

using MacKey = std::array<std::byte, 32>;
inline constexpr std::size_t kMacTagBytes = 16;
using MacTag = std::array<std::byte, kMacTagBytes>;

/// Returns the HMAC-SHA256 of the concatenated parts. internal: libcrypto lacks it.
Result<MacKey> hmac(std::span<const std::byte> key,
                    std::initializer_list<std::span<const std::byte>> parts);

/// Compares in constant time. Returns false for different lengths.
bool same_secret(std::span<const std::byte> a, std::span<const std::byte> b) noexcept;

/// Copies a secret. Overwrites the copy when its last owner ends.
std::shared_ptr<const std::string> copy_secret(std::string_view secret);

/// Computes GMAC tags for one direction. The n-th tag of the sender equals the n-th of the
/// receiver; a message that was changed, dropped, repeated or forged gets another tag.
class FrameAuthenticator {
 public:
  /// `key` must be used by one FrameAuthenticator on each side only.
  explicit FrameAuthenticator(const MacKey& key);

  void update(std::span<const std::byte> bytes) noexcept;
  /// Returns the tag of all bytes since the last call. internal: libcrypto has no GMAC.
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

/// The MAC keys of both directions.
struct MacKeys {
  MacKey out{}, in{};
};

/// A connected socket and what authenticates its bytes: MAC keys, TLS, or nothing.
struct AuthenticatedSocket {
  Fd socket;
  std::optional<MacKeys> keys{};
  std::unique_ptr<TlsEnd> tls{};  ///< Its handshake is complete.
};

}  // namespace linkspan::base
