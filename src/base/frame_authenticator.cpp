#include "base/frame_authenticator.hpp"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace linkspan::base {
namespace {

constexpr std::size_t kNonce = 12;
constexpr std::size_t kStep = std::size_t{1} << 30;  // libcrypto counts in int

const unsigned char* raw(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

/// Keeps libcrypto from cleaning up at exit while threads of an open Engine still use it.
void let_it_stay() {
  [[maybe_unused]] static const int done = OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);
}

Status none(const char* what) {
  return {Code::internal, Scope::process, std::string("libcrypto has no ") + what};
}

}  // namespace

Result<MacKey> hmac(std::span<const std::byte> key,
                    std::initializer_list<std::span<const std::byte>> parts) {
  let_it_stay();
  std::vector<std::byte> all;
  for (const auto part : parts) all.insert(all.end(), part.begin(), part.end());
  MacKey out{};
  std::size_t bytes = 0;
  // libcrypto treats a null key differently from an empty one
  constexpr unsigned char kNothing = 0;
  const auto* made = EVP_Q_mac(nullptr, "HMAC", nullptr, "SHA256", nullptr,
                               key.empty() ? &kNothing : raw(key), key.size(), raw(all), all.size(),
                               reinterpret_cast<unsigned char*>(out.data()), out.size(), &bytes);
  if (made == nullptr || bytes != out.size()) return none("HMAC-SHA256");
  return out;
}

bool same_secret(std::span<const std::byte> a, std::span<const std::byte> b) noexcept {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::shared_ptr<const std::string> copy_secret(std::string_view secret) {
  return {new std::string(secret), [](std::string* copy) {
            OPENSSL_cleanse(copy->data(), copy->size());
            delete copy;
          }};
}

void FrameAuthenticator::Free::operator()(evp_cipher_ctx_st* context) const noexcept {
  EVP_CIPHER_CTX_free(context);
}

FrameAuthenticator::FrameAuthenticator(const MacKey& key) {
  let_it_stay();
  context_.reset(EVP_CIPHER_CTX_new());
  works_ = context_ != nullptr &&
           EVP_EncryptInit_ex(context_.get(), EVP_aes_256_gcm(), nullptr, raw(key), nullptr) == 1;
  begin();
}

/// Starts the next message with its nonce.
void FrameAuthenticator::begin() noexcept {
  std::array<unsigned char, kNonce> nonce{};
  for (std::size_t i = 0; i < sizeof count_; ++i)
    nonce[i] = static_cast<unsigned char>(count_ >> 8 * i);
  ++count_;
  works_ =
      works_ && EVP_EncryptInit_ex(context_.get(), nullptr, nullptr, nullptr, nonce.data()) == 1;
}

void FrameAuthenticator::update(std::span<const std::byte> bytes) noexcept {
  while (works_ && !bytes.empty()) {
    const auto part = bytes.first(std::min(bytes.size(), kStep));
    int done = 0;
    works_ = EVP_EncryptUpdate(context_.get(), nullptr, &done, raw(part),
                               static_cast<int>(part.size())) == 1;
    bytes = bytes.subspan(part.size());
  }
}

Result<MacTag> FrameAuthenticator::finish() {
  MacTag seal{};
  int rest = 0;
  unsigned char nothing = 0;
  works_ = works_ && EVP_EncryptFinal_ex(context_.get(), &nothing, &rest) == 1 &&
           EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_GET_TAG, static_cast<int>(seal.size()),
                               seal.data()) == 1;
  if (!works_) return none("GMAC by AES-256");
  begin();
  return seal;
}

}  // namespace linkspan::base
