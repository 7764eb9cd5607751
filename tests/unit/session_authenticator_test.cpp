#include "control/session_authenticator.hpp"

#include <gtest/gtest.h>

#include "tests/support/take.hpp"

namespace linkspan::control {
namespace session_authenticator_test {

using test::take;

class SessionAuthenticatorTest : public ::testing::Test {
 protected:
  void SetUp() override { derive("secret"); }
  /// Derives the keys of both sides; the acceptor's from `secret`.
  void derive(std::string_view secret) {
    const auto ours = connector_.sign({std::byte{1}}), theirs = acceptor_.sign({std::byte{2}});
    ASSERT_TRUE(connector_.derive("secret", 10, {theirs, 20}).ok());
    ASSERT_TRUE(acceptor_.derive(secret, 20, {ours, 10}).ok());
  }

  SessionAuthenticator connector_{Side::connector, true}, acceptor_{Side::acceptor, true};
};

TEST_F(SessionAuthenticatorTest, ExpectsTheProofOfTheOtherSide) {
  EXPECT_EQ(connector_.key(), acceptor_.key());
  EXPECT_EQ(take(connector_.prove()).mac, take(acceptor_.expected()).mac);
  EXPECT_EQ(take(acceptor_.prove()).mac, take(connector_.expected()).mac);
  EXPECT_NE(take(connector_.prove()).mac, take(acceptor_.prove()).mac);
  EXPECT_EQ(take(connector_.prove()).keys.out, take(acceptor_.expected()).keys.in);
}

TEST_F(SessionAuthenticatorTest, ExpectsAnotherProof_WithAnotherSecret) {
  derive("another");
  EXPECT_NE(take(connector_.prove()).mac, take(acceptor_.expected()).mac);
}

TEST_F(SessionAuthenticatorTest, AdmitsEachOfferOnce) {
  const auto offer = take(connector_.offer("tcp"));
  const auto keys = take(acceptor_.admit(offer.hello));
  EXPECT_EQ(keys->in, offer.seals->out);
  EXPECT_EQ(acceptor_.admit(offer.hello).status().what(), "a data connection that was made before");
  EXPECT_TRUE(acceptor_.admit(take(connector_.offer("tcp")).hello).ok());
}

TEST_F(SessionAuthenticatorTest, RefusesAnOfferOfAnotherTransportOrSide) {
  auto hello = take(connector_.offer("tcp")).hello;
  EXPECT_EQ(connector_.admit(hello).status().code(), Code::permission_denied);
  hello.transport = "other";
  EXPECT_EQ(acceptor_.admit(hello).status().code(), Code::permission_denied);
}

TEST_F(SessionAuthenticatorTest, HasNoKeysOfFrames_WithoutSeals) {
  SessionAuthenticator plain(Side::connector, false);
  EXPECT_EQ(take(plain.offer("tcp")).seals, std::nullopt);
}

}  // namespace session_authenticator_test
}  // namespace linkspan::control
