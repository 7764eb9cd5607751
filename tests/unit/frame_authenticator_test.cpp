// Tests MAC tags: which message has which tag, and that no other message has it.
#include "base/frame_authenticator.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <string_view>

#include "tests/support/take.hpp"

namespace linkspan::base {
namespace frame_authenticator_test {

using test::take;

std::span<const std::byte> bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

template <class Bytes>
std::string hex(const Bytes& all) {
  std::string text;
  for (const std::byte each : all) {
    char two[3];
    (void)std::snprintf(two, sizeof two, "%02x", std::to_integer<unsigned>(each));
    text += two;
  }
  return text;
}

MacKey counted_key() {
  MacKey key{};
  for (std::size_t i = 0; i < key.size(); ++i) key[i] = static_cast<std::byte>(i);
  return key;
}

MacTag next(FrameAuthenticator& sealer, std::string_view text) {
  sealer.update(bytes(text));
  return take(sealer.finish());
}

TEST(Hmac, IsThatOfRfc4231) {
  EXPECT_EQ(hex(take(hmac(bytes("Jefe"), {bytes("what do ya want "), bytes("for nothing?")}))),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex(take(hmac({}, {}))),
            "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
}

TEST(Seals, AreGmacByAes256WithTheCountAsNonce) {
  FrameAuthenticator sealer(counted_key());
  EXPECT_EQ(hex(next(sealer, "")), "f05d76ae4ab99fe5a6f69b3148c2363d");
  EXPECT_EQ(hex(next(sealer, "linkspan")), "f22e76b7e89ca253e96165ea64709576");
}

TEST(Seals, OfTheSameMessagesAreTheSameHoweverTheyCome) {
  FrameAuthenticator one(counted_key()), other(counted_key());
  for (const std::string_view text : {"a message", "", "the next"}) {
    one.update(bytes(text.substr(0, text.size() / 2)));
    one.update(bytes(text.substr(text.size() / 2)));
    EXPECT_EQ(take(one.finish()), next(other, text)) << text;
  }
}

TEST(Seals, DifferByMessageOrderAndKey) {
  MacKey near_key = counted_key();
  near_key[31] ^= std::byte{1};
  FrameAuthenticator sealer(counted_key()), changed(counted_key()), another(near_key);
  const MacTag first = next(sealer, "one"), again = next(sealer, "one");
  EXPECT_FALSE(same_secret(first, again));
  EXPECT_FALSE(same_secret(first, next(changed, "onf")));
  EXPECT_FALSE(same_secret(first, next(another, "one")));
  EXPECT_FALSE(same_secret(first, std::span(first).first(15)));
  EXPECT_TRUE(same_secret(first, first));
}

}  // namespace frame_authenticator_test
}  // namespace linkspan::base
