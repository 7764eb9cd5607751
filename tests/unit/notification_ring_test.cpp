#include "control/notification_ring.hpp"

#include <gtest/gtest.h>

#include <thread>

#include "tests/support/pattern.hpp"
#include "tests/support/take.hpp"

namespace linkspan::control {
namespace notification_ring_test {

using test::must;
using test::take;
using Message = std::vector<std::byte>;

Message message(std::size_t bytes, std::uint64_t seed) {
  Message made(bytes);
  test::put_pattern(made, seed, 0);
  return made;
}

/// Both ends, and the words as either side could write them.
class NotificationRingTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kWritten = 0, kRead = 16, kFirst = 32;  // words
  static constexpr std::size_t kElements = 16384;

  std::optional<Message> next() { return take(reader_.next()); }

  NotificationRing reader_ = take(NotificationRing::create());
  const base::Fd fd_ = reader_.release_fd();
  NotificationRing writer_ = take(NotificationRing::open(fd_));
  base::SharedPage words_ =
      take(base::SharedPage::open(fd_, kFirst + kElements, base::SharedPage::Others::write));
};

TEST_F(NotificationRingTest, BringsMessagesOfAnySizeInOrder) {
  EXPECT_FALSE(next().has_value());
  std::uint64_t seed = 0;
  const std::vector<std::size_t> sizes = {0, 1, 7, 8, 9, 255, 4097, 30001};
  for (int round = 0; round < 40; ++round) {  // many times around
    std::uint64_t came = seed;
    for (const std::size_t bytes : sizes) must(writer_.put(message(bytes, ++seed)));
    for (const std::size_t bytes : sizes) EXPECT_EQ(next(), message(bytes, ++came));
    EXPECT_FALSE(next().has_value());
  }
}

TEST_F(NotificationRingTest, RingsForWhoSleepsAndOnlyOnce) {
  must(writer_.put(message(1, 1)));
  EXPECT_FALSE(writer_.consume_doorbell_request()) << "nobody sleeps";
  EXPECT_FALSE(reader_.request_doorbell()) << "a message is there";
  EXPECT_TRUE(next().has_value());
  EXPECT_TRUE(reader_.request_doorbell());
  must(writer_.put(message(1, 2)));
  EXPECT_TRUE(writer_.consume_doorbell_request());
  EXPECT_FALSE(writer_.consume_doorbell_request());
}

TEST_F(NotificationRingTest, IsFullUntilSomeAreTaken) {
  EXPECT_EQ(writer_.put(message(NotificationRing::kMaxMessage + 1, 1)).code(),
            Code::invalid_argument);
  std::size_t put = 0;
  Status full;
  while ((full = writer_.put(message(1024, put + 1))).ok()) ASSERT_LT(++put, 1000u);
  EXPECT_EQ(full.code(), Code::no_resource);
  EXPECT_EQ(put, kElements / (1 + 1024 / 8));
  EXPECT_EQ(next(), message(1024, 1));
  must(writer_.put(message(1024, put + 1)));
  for (std::size_t i = 2; i <= put + 1; ++i) EXPECT_EQ(next(), message(1024, i));
  must(writer_.put(message(NotificationRing::kMaxMessage, 5)));
  EXPECT_EQ(next(), message(NotificationRing::kMaxMessage, 5));
}

TEST_F(NotificationRingTest, WhatTheOtherSideWritesIsMeasured) {
  const auto refuses = [&] { return reader_.next().status().code() == Code::corrupt; };
  words_[kWritten] = kElements + 1;  // more than there is
  EXPECT_TRUE(refuses());
  words_[kWritten] = ~std::uint64_t{0};
  EXPECT_TRUE(refuses());
  words_[kWritten] = 4;
  for (const std::uint64_t length : {std::uint64_t{25}, std::uint64_t{65537}, ~std::uint64_t{0}}) {
    words_[kFirst] = length;  // beyond what was written, what one may have, what can be
    EXPECT_TRUE(refuses()) << length;
  }
  words_[kRead] = 1;  // before anything was put
  EXPECT_EQ(writer_.put(message(8, 1)).code(), Code::corrupt);
  const base::SharedPage small =
      take(base::SharedPage::create("small", 64, base::SharedPage::Others::write));
  EXPECT_EQ(NotificationRing::open(small.fd()).status().code(), Code::corrupt);
}

TEST_F(NotificationRingTest, TwoThreadsMeetInIt) {
  constexpr std::uint64_t kMessages = 20000;
  std::jthread writing([&] {
    for (std::uint64_t i = 1; i <= kMessages;) {
      const Status put = writer_.put(message(i % 100, i));
      if (put.ok())
        ++i;
      else
        ASSERT_EQ(put.code(), Code::no_resource);
    }
  });
  for (std::uint64_t i = 1; i <= kMessages;) {
    const auto came = next();
    if (!came) continue;
    ASSERT_EQ(*came, message(i % 100, i)) << i;
    ++i;
  }
}

}  // namespace notification_ring_test
}  // namespace linkspan::control
