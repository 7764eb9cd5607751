// Tests ProxyOrders in host memory: which orders are next, and what kernels see of the proxy.
#include "engine/windows/proxy_orders.hpp"

#include <gtest/gtest.h>

#include "tests/support/take.hpp"

namespace linkspan::engine {
namespace proxy_orders_test {

using device::Outcome;
using test::take;

constexpr std::uint32_t kCapacity = 2;

class ProxyOrdersTest : public ::testing::Test {
 protected:
  Outcome order(std::uint64_t local) {
    return device::detail::enqueue(window_.proxy, window_.abort, device::ProxyOp::put, local, 0, 1,
                                   0);
  }

  device::Window window_;
  ProxyOrders orders_ = take(ProxyOrders::create(nullptr, nullptr, kCapacity, window_));
};

TEST_F(ProxyOrdersTest, AreReadOnceAndInOrder) {
  EXPECT_TRUE(window_.proxied());
  EXPECT_EQ(orders_.front(), nullptr);
  for (const unsigned local : {7u, 8u}) EXPECT_EQ(order(local), Outcome::ok);
  for (const unsigned local : {7u, 8u}) {
    ASSERT_NE(orders_.front(), nullptr);
    EXPECT_EQ(orders_.front()->local, local);
    orders_.pop();
  }
  EXPECT_EQ(orders_.front(), nullptr);
  EXPECT_EQ(orders_.taken(), 2u);
}

TEST_F(ProxyOrdersTest, HaveRoomAgain_OnceTheProgressIsPublished) {
  for (std::uint32_t i = 0; i < kCapacity; ++i) EXPECT_EQ(order(i), Outcome::ok);
  EXPECT_NE(order(9), Outcome::ok) << "the queue is full";
  orders_.pop();
  orders_.count_done();
  orders_.publish(false);
  EXPECT_EQ(window_.proxy.state[device::kProxyDone], 1u);
  EXPECT_EQ(order(9), Outcome::ok);
}

TEST_F(ProxyOrdersTest, AreRefused_AfterAFailure) {
  orders_.publish(true);
  EXPECT_EQ(order(1), Outcome::failed);
}

TEST_F(ProxyOrdersTest, BeginOneMoreQueueAtMost_AfterTheirWindowIsRetired) {
  orders_.retire();
  EXPECT_EQ(*window_.abort, 1u);
  for (std::uint32_t i = 0; i < kCapacity; ++i) {
    EXPECT_EQ(order(i), Outcome::ok);
    EXPECT_NE(orders_.front(), nullptr);
    orders_.pop();
    orders_.publish(false);
  }
  EXPECT_EQ(order(9), Outcome::ok);
  EXPECT_EQ(orders_.front(), nullptr);
}

TEST(ProxyOrders, AreNone_WithoutACapacity) {
  device::Window window;
  ProxyOrders orders = take(ProxyOrders::create(nullptr, nullptr, 0, window));
  EXPECT_FALSE(window.proxied());
  EXPECT_EQ(orders.front(), nullptr);
  orders.publish(true);
  orders.abort_waits();
  EXPECT_EQ(*window.abort, 1u);
}

}  // namespace proxy_orders_test
}  // namespace linkspan::engine
