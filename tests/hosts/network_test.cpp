// Tests what the network of tests/support/network.hpp does to connections, without which tests over
// it show nothing.
#include "tests/support/network.hpp"

#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <thread>

#include "tests/support/pattern.hpp"
#include "tests/support/take.hpp"

namespace linkspan::test {
namespace network_test {

bool is_readable(const base::Fd& socket, std::chrono::milliseconds limit) {
  pollfd ready{.fd = socket.get(), .events = POLLIN, .revents = 0};
  return ::poll(&ready, 1, static_cast<int>(limit.count())) > 0;
}
int option(const base::Fd& socket, int level, int name) {
  int value = 0;
  socklen_t bytes = sizeof value;
  EXPECT_EQ(::getsockopt(socket.get(), level, name, &value, &bytes), 0);
  return value;
}
void send(const base::Fd& socket, std::string_view text) {
  must(net::send_all(socket, text, base::Deadline::after(base::Clock::steady(), 30s)));
}
std::string receive(const base::Fd& socket, std::size_t bytes) {
  const auto limit = base::Deadline::after(base::Clock::steady(), 30s);
  std::string all;
  while (all.size() < bytes) all += take(net::receive_some(socket, bytes - all.size(), limit));
  return all;
}

class NetworkOf : public ::testing::TestWithParam<Cable> {
 protected:
  void SetUp() override {
    auto made = Network::create(GetParam());
    if (made.status().code() == Code::unsupported) GTEST_SKIP() << made.status().to_string();
    network_ = take(std::move(made));
    std::tie(near_, far_) = network_->connection();
  }
  std::unique_ptr<Network> network_;
  base::Fd near_, far_;
};

TEST_P(NetworkOf, BringsAllBytesAsItsCableDoes) {
  constexpr std::size_t kBytes = 2u << 20;
  std::vector<std::byte> bytes(kBytes);
  put_pattern(bytes, 1, 0);
  const std::string all(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const base::Time begin = base::Clock::steady().now();
  std::jthread sending([&] { send(near_, all); });
  EXPECT_TRUE(receive(far_, kBytes) == all);
  const Duration took = base::Clock::steady().now() - begin;
  switch (GetParam()) {
    case Cable::slow:
      EXPECT_GT(took, 80ms);
      break;
    case Cable::lossy_with_small_windows:
      EXPECT_LE(option(near_, SOL_SOCKET, SO_SNDBUF), 16384);
      EXPECT_LE(option(far_, SOL_SOCKET, SO_RCVBUF), 16384);
      [[fallthrough]];
    case Cable::lossy:
      EXPECT_GT(network_->dropped(), 0u);
      break;
    case Cable::small_packets:
      EXPECT_LE(option(near_, IPPROTO_TCP, TCP_MAXSEG), 1400 - 40);
      for (const Host host : {Host::near, Host::far})
        EXPECT_NE(network_->run(host, "ip link show cable").find("mtu 1400"), std::string::npos);
      break;
    case Cable::plain:
      EXPECT_EQ(network_->dropped(), 0u);
      break;
  }
}

TEST_P(NetworkOf, BringsNothingWhileItIsCut) {
  const base::Time begin = base::Clock::steady().now();
  send(near_, "a");
  EXPECT_EQ(receive(far_, 1), "a");
  send(far_, "b");
  EXPECT_EQ(receive(near_, 1), "b");
  if (GetParam() == Cable::slow) {
    EXPECT_GE(base::Clock::steady().now() - begin, 40ms);
  }
  network_->cut();
  send(near_, "c");
  EXPECT_FALSE(is_readable(far_, 300ms));
  network_->mend();
  EXPECT_EQ(receive(far_, 1), "c");
}

TEST_P(NetworkOf, TellsOfTheEndOfAConnection) {
  send(near_, "last");
  near_ = base::Fd();
  EXPECT_EQ(receive(far_, 4), "last");
  EXPECT_TRUE(is_readable(far_, 30s));
  EXPECT_EQ(
      net::receive_some(far_, 1, base::Deadline::after(base::Clock::steady(), 1s)).status().code(),
      Code::disconnected);
}

INSTANTIATE_TEST_SUITE_P(Every, NetworkOf,
                         ::testing::Values(Cable::plain, Cable::lossy, Cable::slow,
                                           Cable::small_packets, Cable::lossy_with_small_windows),
                         [](const auto& cable) { return std::string(name_of(cable.param)); });

}  // namespace network_test
}  // namespace linkspan::test
