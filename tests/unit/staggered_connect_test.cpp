// Tests that all of a host's addresses are tried, the next one while the previous one is silent.
#include "net/staggered_connect.hpp"

#include <gtest/gtest.h>
#include <poll.h>

#include <vector>

#include "linkspan/interrupt_check.hpp"
#include "tests/support/take.hpp"
#include "tests/unit/store_fixture.hpp"

namespace linkspan::net {
namespace staggered_connect_test {

using namespace std::chrono_literals;
using test::take;

base::Deadline within(Duration time) { return base::Deadline::after(base::Clock::steady(), time); }

/// An address whose queue of connections is full: it takes SYNs in silence.
struct Silent {
  explicit Silent(const TcpAddress& at) : listener(take(begin_listening(at))) {
    for (int i = 0; i < 5; ++i) waiting.push_back(take(begin_connect(at)));
  }
  static Result<base::Fd> begin_listening(const TcpAddress& at) {
    auto socket = listen_at(at);
    if (socket.ok()) (void)::listen(socket->get(), 0);
    return socket;
  }
  base::Fd listener;
  std::vector<base::Fd> waiting;
};

class StaggeredConnect : public ::testing::Test {
 protected:
  static TcpAddress at(const char* host, std::uint16_t port) {
    return take(resolve(host, port)).front();
  }
  const base::Fd live_ = take(listen_at(at("127.0.0.1", 0)));
  const TcpAddress second_ = take(address_of(live_));
  const TcpAddress first_ = at("127.0.0.2", second_.port());
  const std::vector<TcpAddress> both_{first_, second_};
};

TEST_F(StaggeredConnect, TakesTheSecond_WhenTheFirstIsSilent) {
  const Silent silent(first_);
  const base::Fd socket = take(connect_to(both_, within(2s)));
  EXPECT_EQ(take(net::peer_of(socket.get())).to_string(), second_.to_string());
}

TEST_F(StaggeredConnect, TakesTheSecond_WhenTheFirstRefuses) {
  const base::Fd socket = take(connect_to(both_, within(30s)));
  EXPECT_EQ(take(net::peer_of(socket.get())).to_string(), second_.to_string());
}

TEST_F(StaggeredConnect, NamesEachAddress_WhenNoneConnects) {
  const Silent silent(first_);
  const TcpAddress none = at("127.0.0.3", second_.port());
  const std::vector<TcpAddress> bad{first_, none};
  const Status status = connect_to(bad, within(500ms)).status();
  EXPECT_EQ(status.code(), Code::timed_out);
  EXPECT_NE(status.what().find(first_.to_string() + ": no answer"), std::string::npos)
      << status.what();
  EXPECT_NE(status.what().find(none.to_string() + ": Connection refused"), std::string::npos)
      << status.what();
  EXPECT_EQ(connect_to(std::vector{none}, within(30s)).status().code(), Code::unreachable);
}

TEST_F(StaggeredConnect, AnswersUnreachable_WhenTheLastIsSilentForLong) {
  const Silent silent(first_);
  EXPECT_EQ(connect_to(std::vector{first_}, within(1h)).status().code(), Code::unreachable);
}

TEST_F(StaggeredConnect, EndsWhenItIsInterrupted) {
  const Silent silent(first_);
  const InterruptCheck check([] { return true; });
  EXPECT_EQ(connect_to(std::vector{first_}, within(1h)).status().code(), Code::canceled);
}

TEST_F(StaggeredConnect, ASocketConnectedToItselfIsRefused) {
  for (const char* host : {"127.0.0.1", "0.0.0.0"}) {
    const std::uint16_t port = test::free_port();
    const TcpAddress to = at(host, port);
    const base::Fd socket = take(begin_connect(to, at("127.0.0.1", port), "lo"));
    pollfd ready{.fd = socket.get(), .events = POLLOUT, .revents = 0};
    ASSERT_EQ(::poll(&ready, 1, 10000), 1);
    const Status status = connected(socket, to);
    EXPECT_EQ(status.code(), Code::unreachable) << host;
    EXPECT_NE(status.what().find("nobody listens"), std::string::npos) << status.what();
  }
}

}  // namespace staggered_connect_test
}  // namespace linkspan::net
