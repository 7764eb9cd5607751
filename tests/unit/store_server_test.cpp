// Tests the server against hostile and faulty clients.
#include "store/server.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <future>

#include "base/mutex.hpp"
#include "net/tcp_socket.hpp"
#include "tests/support/take.hpp"
#include "tests/unit/store_fixture.hpp"

namespace linkspan::store {
namespace store_server_test {

using namespace std::chrono_literals;
using namespace std::string_literals;
using test::take;

base::Deadline within(Duration time) { return base::Deadline::after(base::Clock::steady(), time); }

std::string bytes_of(Op op, std::vector<std::string> keys = {},
                     std::vector<std::string> values = {}, std::int64_t number = 0,
                     Dialect dialect = Dialect::current) {
  Request request;
  request.op = op;
  request.keys = std::move(keys);
  request.values = std::move(values);
  request.number = number;
  return take(encode(request, dialect));
}

std::string hello() {
  std::string out(1, '\0');
  put_number(out, kMagic, 4);
  return out + bytes_of(Op::ping, {}, {}, 7);
}
const std::string kPong = "\7\0\0\0"s;

class StoreServer : public ::testing::Test {
 protected:
  void serve(const Limits& limits) {
    base::Fd socket = take(net::listen_at(take(net::resolve("127.0.0.1", 0)).front()));
    at_ = take(net::address_of(socket));
    server_ = take(Server::start(std::move(socket), limits, [this](std::string_view line) {
      const base::MutexLock lock(mutex_);
      log_ += std::string(line) + "\n";
    }));
  }
  std::string log() LINKSPAN_EXCLUDES(mutex_) {
    const base::MutexLock lock(mutex_);
    return log_;
  }

  base::Fd connect() { return take(connect_to(at_, within(10s))); }
  static void say(const base::Fd& socket, const std::string& bytes) {
    ASSERT_TRUE(net::send_all(socket, bytes, within(10s)).ok());
  }
  /// Returns up to `count` received bytes; fewer mean that the server closed the connection.
  static std::string hear(const base::Fd& socket, std::size_t count) {
    std::string all;
    while (all.size() < count) {
      auto more = net::receive_some(socket, count - all.size(), within(10s));
      if (!more.ok()) return all + (more.status().code() == Code::disconnected ? "" : "(late)");
      all += *more;
    }
    return all;
  }
  static std::string ask(const base::Fd& socket, const std::string& bytes, std::size_t count) {
    say(socket, bytes);
    return hear(socket, count);
  }
  /// Checks that a new client is served.
  void expect_well() {
    const base::Fd client = connect();
    EXPECT_EQ(ask(client, hello(), 4), kPong) << log();
  }
  static bool closed(const base::Fd& socket) { return hear(socket, 1).empty(); }

  net::TcpAddress at_;
  base::Mutex mutex_;
  std::string log_ LINKSPAN_GUARDED_BY(mutex_);
  std::unique_ptr<Server> server_;  // last: it writes to the log
};

TEST_F(StoreServer, BothDialectsSeeTheSameKeys) {
  serve({});
  const base::Fd now = connect(), older = connect();
  EXPECT_EQ(ask(now, hello() + bytes_of(Op::add, {"n"}, {}, 5), 12), kPong + "\5\0\0\0\0\0\0\0"s);
  const auto old = [](Op op, std::vector<std::string> keys, std::vector<std::string> values = {},
                      std::int64_t number = 0) {
    return bytes_of(op, std::move(keys), std::move(values), number, Dialect::older);
  };
  // The first request is a `set`, which also begins with a zero, and arrives byte by byte.
  for (const char each : old(Op::set, {"k"}, {"v"})) say(older, std::string(1, each));
  EXPECT_EQ(ask(older, old(Op::add, {"n"}, {}, 1), 8), "\6\0\0\0\0\0\0\0"s);
  EXPECT_EQ(ask(now, bytes_of(Op::get, {"k"}), 9), "\1\0\0\0\0\0\0\0v"s);
  EXPECT_EQ(ask(older, old(Op::check, {kOurServer}), 1), "\0"s) << "a client would stay older";
}

TEST_F(StoreServer, AnOlderClientsForgottenWaitIsNotAnswered) {
  serve({});
  const base::Fd older = connect(), other = connect();
  say(older, bytes_of(Op::wait, {"a"}, {}, 0, Dialect::older));
  EXPECT_EQ(ask(older, bytes_of(Op::num_keys, {}, {}, 0, Dialect::older), 8), std::string(8, '\0'));
  EXPECT_EQ(ask(other, hello() + bytes_of(Op::add, {"a"}, {}, 1), 12).size(), 12u);
  EXPECT_EQ(ask(older, bytes_of(Op::num_keys, {}, {}, 0, Dialect::older), 8), "\1\0\0\0\0\0\0\0"s);
}

TEST_F(StoreServer, WaitsAreAnsweredOnceAndCancelled) {
  serve({});
  const base::Fd a = connect(), b = connect(), c = connect();
  EXPECT_EQ(ask(a, hello() + bytes_of(Op::wait, {"x", "y", "x"}), 4), kPong);
  EXPECT_EQ(ask(b, hello() + bytes_of(Op::wait, {"x"}) + bytes_of(Op::cancel_wait), 5),
            kPong + "\1"s);
  EXPECT_EQ(ask(c, hello() + bytes_of(Op::add, {"x"}, {}, 1), 12).size(), 12u);
  EXPECT_EQ(ask(c, bytes_of(Op::compare_set, {"y"}, {"", "1"}), 9).size(), 9u);
  EXPECT_EQ(ask(a, bytes_of(Op::ping, {}, {}, 7), 5), "\0"s + kPong);
  EXPECT_EQ(ask(b, bytes_of(Op::ping, {}, {}, 7), 4), kPong) << "a wait that was taken back";
  EXPECT_EQ(ask(a, bytes_of(Op::cancel_wait), 1), "\1"s) << "without a wait";
}

TEST_F(StoreServer, AQueuesValueWakesOne) {
  serve({});
  const base::Fd a = connect(), b = connect(), c = connect();
  EXPECT_EQ(ask(a, hello() + bytes_of(Op::wait, {"q"}), 4), kPong);
  EXPECT_EQ(ask(b, hello() + bytes_of(Op::wait, {"q"}), 4), kPong);
  EXPECT_EQ(ask(c, hello() + bytes_of(Op::queue_push, {"q"}, {"1"}), 4), kPong);
  EXPECT_EQ(hear(a, 1), "\0"s);
  EXPECT_EQ(ask(a, bytes_of(Op::queue_pop, {"q"}), 17), "\1\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\x31"s);
  EXPECT_EQ(ask(b, bytes_of(Op::cancel_wait), 1), "\1"s);
}

TEST_F(StoreServer, WakesTheNextWaiter_WhenTheOneThatWasWokenDoesNotPop) {
  serve({});
  base::Fd a = connect(), b = connect(), c = connect();
  const base::Fd d = connect();
  for (const base::Fd* each : {&a, &b, &c})  // in this order
    EXPECT_EQ(ask(*each, hello() + bytes_of(Op::wait, {"q"}), 4), kPong);
  EXPECT_EQ(ask(d, hello() + bytes_of(Op::queue_push, {"q"}, {"1"}), 4), kPong);
  EXPECT_EQ(hear(a, 1), "\0"s);
  a = base::Fd();  // it dies
  EXPECT_EQ(hear(b, 1), "\0"s);
  EXPECT_EQ(ask(b, bytes_of(Op::ping, {}, {}, 7), 4), kPong);  // it wants something else
  EXPECT_EQ(hear(c, 1), "\0"s);
  EXPECT_EQ(ask(c, bytes_of(Op::queue_pop, {"q"}), 17).size(), 17u);
}

TEST_F(StoreServer, AClientPopsAValue_ThatWokeAnotherWait) {
  serve({});
  const base::Fd waits = connect(), pushes = connect();
  EXPECT_EQ(ask(waits, hello(), 4), kPong);  // the server wakes the first connection first
  EXPECT_EQ(ask(pushes, hello(), 4), kPong);
  const auto pops = test::open(test::at_port(at_.port()));
  ASSERT_NE(pops, nullptr);
  Code code = Code::timed_out;
  // On a slow machine the value may come after the time-out. Then the next round has more time.
  for (Duration time = 300ms; code == Code::timed_out && time < 10s; time *= 2) {
    const std::string queue = "q" + std::to_string(time / 1ms), key = "/" + queue;
    // The number of keys is answered once the server has the wait.
    EXPECT_EQ(ask(waits, bytes_of(Op::wait, {key}) + bytes_of(Op::num_keys), 8).size(), 8u);
    auto popped = std::async(std::launch::async, [&] { return pops->queue_pop(queue, time); });
    (void)popped.wait_for(50ms);  // until its wait is most probably there, too
    say(pushes, bytes_of(Op::queue_push, {key}, {"1"}));
    EXPECT_EQ(hear(waits, 1), "\0"s);
    const auto got = popped.get();
    code = got.status().code();
    EXPECT_EQ(got.ok() ? *got : "1", "1");
  }
  EXPECT_EQ(code, Code::ok);
}

TEST_F(StoreServer, ASlowRequestIsServed_WhileItsBytesCome) {
  constexpr std::chrono::milliseconds kStall = 2s, kPause = 100ms;
  serve({.stall = kStall});
  const base::Fd client = connect();
  EXPECT_EQ(ask(client, hello(), 4), kPong);
  const std::string request =
      bytes_of(Op::set, {"k"}, {std::string(10, 'v')}) + bytes_of(Op::ping, {}, {}, 7);
  ASSERT_GT(request.size() * kPause, kStall + 1s);
  for (const char each : request) {
    say(client, std::string(1, each));
    (void)::poll(nullptr, 0, static_cast<int>(kPause / 1ms));  // the pace of a slow network
  }
  EXPECT_EQ(hear(client, 4), kPong) << log();
}

TEST_F(StoreServer, SilentConnectionsGo_WhenRoomIsNeeded) {
  serve({.connections = 3, .silence = 1h});
  const base::Fd first = connect(), second = connect(), third = connect();
  EXPECT_EQ(ask(third, hello(), 4), kPong);  // so all three are there
  const base::Fd more = connect();
  EXPECT_EQ(ask(more, hello(), 4), kPong);
  EXPECT_TRUE(closed(first));
  EXPECT_EQ(ask(second, hello(), 4), kPong);
  EXPECT_EQ(ask(third, bytes_of(Op::ping, {}, {}, 7), 4), kPong);
}

TEST_F(StoreServer, IdleConnectionsGo_WhenRoomIsNeeded) {
  serve({.connections = 3, .idle = 0s});
  const base::Fd idle = connect(), waits = connect(), midway = connect();
  EXPECT_EQ(ask(waits, hello() + bytes_of(Op::wait, {"k"}), 4), kPong);
  EXPECT_EQ(
      ask(midway,
          hello() + bytes_of(Op::num_keys).substr(0, 1) + bytes_of(Op::get, {"k"}).substr(0, 3), 12)
          .size(),
      12u);
  EXPECT_EQ(ask(idle, hello(), 4), kPong);
  const base::Fd more = connect();
  EXPECT_EQ(ask(more, hello() + bytes_of(Op::add, {"k"}, {}, 1), 12).size(), 12u);
  EXPECT_TRUE(closed(idle));
  EXPECT_EQ(hear(waits, 1), "\0"s);
  EXPECT_EQ(ask(midway, bytes_of(Op::get, {"k"}).substr(3), 9).size(), 9u);
}

TEST_F(StoreServer, CountsWhatConnectionsAllocate) {
  serve({.buffered = std::size_t{1} << 20});
  // 10,000 short keys of a request that is not whole: 30 KiB on the wire, in lists of strings more.
  std::vector<base::Fd> clients;
  std::size_t open = 0;
  std::string part(1, static_cast<char>(Op::check));
  put_number(part, 20'000, 8);
  for (int i = 0; i < 10'000; ++i) put_text(part, "k");
  for (int i = 0; i < 8; ++i) {
    clients.push_back(connect());
    (void)net::send_all(clients.back(), hello() + part, within(5s));
  }
  for (const base::Fd& client : clients) {
    pollfd gone{.fd = client.get(), .events = POLLRDHUP, .revents = 0};
    open += ::poll(&gone, 1, 500) == 0 ? 1 : 0;
  }
  EXPECT_LE(open, 3u);
  expect_well();
}

TEST_F(StoreServer, WhoSpeaksNonsenseIsClosedAndTheOthersStay) {
  serve({});
  const base::Fd good = connect();
  EXPECT_EQ(ask(good, hello(), 4), kPong);
  std::string long_key(1, static_cast<char>(Op::get));
  put_number(long_key, ~std::uint64_t{0}, 8);
  for (const std::string& bad :
       {"GET / HTTP/1.1\r\n\r\n"s, hello() + "\0"s, hello() + "\xff"s, hello() + long_key,
        hello() + bytes_of(Op::set, {"t"}, {"text"}) + bytes_of(Op::add, {"t"}, {}, 1)}) {
    const base::Fd client = connect();
    say(client, bad);
    const std::string heard = hear(client, 5);
    EXPECT_LE(heard.size(), 4u) << "it was not closed";
  }
  EXPECT_EQ(ask(good, bytes_of(Op::get, {"t"}), 12).substr(8), "text");
  const auto limit = within(10s);
  while (log().empty() && !limit.passed()) (void)::poll(nullptr, 0, 1);
  EXPECT_NE(log().find("a connection was closed"), std::string::npos);
}

TEST_F(StoreServer, SilenceAndHalfRequestsEnd) {
  serve({.silence = 50ms, .stall = 200ms});
  const base::Fd silent = connect(), greeted = connect(), half = connect(), idle = connect();
  say(greeted, hello().substr(0, 5));
  EXPECT_EQ(ask(half, hello(), 4), kPong);
  EXPECT_EQ(ask(idle, hello(), 4), kPong);
  say(half, bytes_of(Op::get, {"k"}).substr(0, 5));
  EXPECT_TRUE(closed(silent));
  EXPECT_TRUE(closed(greeted));
  EXPECT_TRUE(closed(half));
  EXPECT_EQ(ask(idle, bytes_of(Op::ping, {}, {}, 7), 4), kPong) << "who has asked may be idle";
}

TEST_F(StoreServer, ConnectionsBeyondTheLimitAreClosed) {
  serve({.connections = 3});
  std::vector<base::Fd> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(connect());
    EXPECT_EQ(ask(clients.back(), hello(), 4), kPong);
  }
  const base::Fd more = connect();
  EXPECT_TRUE(closed(more));
  clients.pop_back();
  const auto limit = within(10s);
  for (bool served = false; !served && !limit.passed();) {
    const base::Fd next = connect();
    served = net::send_all(next, hello(), within(1s)).ok() && hear(next, 4) == kPong;
  }
  EXPECT_FALSE(limit.passed()) << "a place was free";
}

TEST_F(StoreServer, WhoReadsNothingIsNotReadOn) {
  serve({.stall = 500ms});
  const base::Fd client = connect();
  EXPECT_EQ(ask(client, hello() + bytes_of(Op::set, {"k"}, {std::string(4 << 20, 'x')}), 4), kPong);
  std::string many;
  for (int i = 0; i < 4096; ++i) many += bytes_of(Op::get, {"k"});  // 16 GiB of answers
  (void)net::send_all(client, many, within(300ms));
  expect_well();
  pollfd gone{.fd = client.get(), .events = POLLRDHUP, .revents = 0};
  EXPECT_EQ(::poll(&gone, 1, 20'000), 1) << "it is not closed";
  expect_well();
}

TEST_F(StoreServer, AllBuffersTogetherAreBounded) {
  serve({.buffered = std::size_t{1} << 20});
  std::vector<base::Fd> clients;
  const std::string part = bytes_of(Op::set, {"k"}, {std::string(400 << 10, 'x')});
  for (int i = 0; i < 4; ++i) {
    clients.push_back(connect());
    (void)net::send_all(clients.back(), hello() + part.substr(0, part.size() - 1), within(5s));
  }
  EXPECT_EQ(hear(clients[0], 4), kPong);
  std::size_t open = 0;
  for (const base::Fd& client : clients) {
    pollfd gone{.fd = client.get(), .events = POLLRDHUP, .revents = 0};
    open += ::poll(&gone, 1, 1000) == 0 ? 1 : 0;
  }
  EXPECT_LE(open, 2u);
  expect_well();
  // Waits count as well.
  const base::Fd waits = connect();
  std::vector<std::string> keys;
  for (int i = 0; i < 10'000; ++i) keys.push_back(std::to_string(i));
  (void)net::send_all(waits, hello() + bytes_of(Op::wait, keys), within(5s));
  EXPECT_LE(hear(waits, 5).size(), 4u);
  expect_well();
}

TEST_F(StoreServer, AnswersThatAreTooLongEndTheConnection) {
  serve({});
  const base::Fd client = connect();
  EXPECT_EQ(ask(client, hello() + bytes_of(Op::set, {"k"}, {std::string(8 << 20, 'x')}), 4), kPong);
  say(client, bytes_of(Op::multi_get, std::vector<std::string>(100'000, "k")));
  EXPECT_TRUE(closed(client));
  expect_well();
}

TEST_F(StoreServer, DrainWaitsForThoseWhoHaveAsked) {
  serve({});
  const base::Fd silent = connect();
  EXPECT_TRUE(server_->drain(within(0s)).ok());
  {
    const base::Fd client = connect();
    EXPECT_EQ(ask(client, hello(), 4), kPong);
    EXPECT_EQ(server_->drain(within(20ms)).code(), Code::timed_out);
    auto drained = std::async(std::launch::async, [&] { return server_->drain(within(10s)); });
    EXPECT_EQ(drained.wait_for(20ms), std::future_status::timeout);
    ::shutdown(client.get(), SHUT_RDWR);
    EXPECT_TRUE(drained.get().ok());
  }
}

TEST_F(StoreServer, EndsForItsClients_WhenAForkedChildLives) {
  serve({});
  const base::Fd client = connect();
  EXPECT_EQ(ask(client, hello(), 4), kPong);
  const pid_t child = ::fork();
  if (child == 0)
    for (;;) ::pause();
  server_.reset();
  EXPECT_TRUE(closed(client));
  EXPECT_EQ(connect_to(at_, within(10s)).status().code(), Code::unreachable);
  EXPECT_TRUE(net::listen_at(at_).ok()) << "its port is free";
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
}

}  // namespace store_server_test
}  // namespace linkspan::store
