// Tests how a client finds out the dialect of a server.
#include "store/store_client.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <thread>

#include "net/staggered_connect.hpp"
#include "tests/support/take.hpp"

namespace linkspan::store {
namespace store_client_test {

using namespace std::chrono_literals;
using namespace std::string_literals;
using test::take;

/// Closes its first connection and answers the second one in the older dialect. It `is_ours` if it
/// has that key; then it answers a third connection in the current dialect.
class Greeted {
 public:
  explicit Greeted(bool is_ours) : is_ours_(is_ours) {}

  const net::TcpAddress& address() const { return at_; }

 private:
  base::Fd accept() {
    pollfd ready{.fd = listening_.get(), .events = POLLIN, .revents = 0};
    (void)::poll(&ready, 1, 10'000);
    base::Fd socket(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    EXPECT_TRUE(socket.valid());
    return socket;
  }
  static std::string hear(const base::Fd& socket, std::size_t count) {
    std::string all;
    while (all.size() < count) {
      auto more = net::receive_some(socket, count - all.size(), base::Deadline::in(10s));
      if (!more.ok()) return all;
      all += *more;
    }
    return all;
  }
  static void say(const base::Fd& socket, const std::string& bytes) {
    EXPECT_TRUE(net::send_all(socket, bytes, base::Deadline::in(10s)).ok());
  }
  void serve() {
    hear(accept(), 10);
    older_ = accept();
    hear(older_, 1);
    say(older_, std::string(8, '\0'));
    const std::string check = hear(older_, 1 + 8 + 8 + std::string(kOurServer).size());
    EXPECT_NE(check.find(kOurServer), std::string::npos);
    say(older_, std::string(1, static_cast<char>(is_ours_ ? kReady : kNotReady)));
    if (!is_ours_) return;
    current_ = accept();
    const std::string greeting = hear(current_, 10);
    say(current_, greeting.substr(std::min<std::size_t>(6, greeting.size())));
  }

  const bool is_ours_;
  const base::Fd listening_ = take(net::listen_at(take(net::resolve("127.0.0.1", 0)).front()));
  const net::TcpAddress at_ = take(net::address_of(listening_));
  base::Fd older_, current_;
  std::jthread thread_{[this] { serve(); }};  // last: it uses all of the above
};

Dialect met_by(const Greeted& server) {
  return take(meet({server.address()}, StoreDialect::detect, {}, base::Deadline::in(10s)))
      .dialect();
}

TEST(StoreClient, SpeaksTheCurrentDialect_WhenTheServerHadNoRoomForAMoment) {
  EXPECT_EQ(met_by(Greeted(true)), Dialect::current);
}

TEST(StoreClient, SpeaksTheOlderDialect_WhenTheServerHasNoOther) {
  EXPECT_EQ(met_by(Greeted(false)), Dialect::older);
}

}  // namespace store_client_test
}  // namespace linkspan::store
