// What a Control lets others take of it: each limit is reached, answered, and has room again.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "control/control.hpp"
#include "control/socket_address.hpp"
#include "tests/support/raw_peer.hpp"
#include "tests/support/take.hpp"

namespace linkspan::control {
namespace {

using namespace std::chrono_literals;
using test::connect_raw, test::greet_raw, test::next_raw;

/// An Engine that has nothing to say.
class Quiet final : public Listener {
 public:
  std::vector<TransportAddress> addresses() override { return {}; }
  Status met(const std::shared_ptr<Session>&) override { return {}; }
  void up(Session&) override {}
  void lost(Session&) override {}
  void gone(Session&) override {}
  void for_transport(Session&, TransportMessage, std::span<base::Fd>) override {}
  Result<Exported> exported(Session&, std::string_view, std::uint64_t) override {
    return nothing();
  }
  void asked_for_set(Session&, std::uint64_t, AskSet) override {}
  void set_told(Session&, std::uint64_t, memory::PublishedSet) override {}
  Result<Exported> offered(Session&, std::uint64_t) override { return nothing(); }
  Status exchange(Session&, base::Frame&) override { return {}; }
  void imported(Session&, std::uint64_t, Result<Exported>) override {}
  void notified(Session&, std::vector<std::byte>) override {}
  void collect(Session&) override {}
  Result<std::string> asked(OperatorOp) override { return nothing(); }

 private:
  static Status nothing() { return {Code::not_found, Scope::request, "nothing"}; }
};

class ControlLimits : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/linkspan-test-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void serve(const Limits& limits) {
    us_ = {.engine = "server", .incarnation = 11, .limits = limits};
    server_ = test::take(Control::open(us_, quiet_, log_));
    test::must(server_->listen(path()));
  }
  std::string path() const { return folder_ + "/s"; }
  /// The answer of a server that is not closed by it.
  static Code answer(base::FdChannel& channel) {
    test::send_raw(channel, FrameOp::import, encode_import("x"));
    const auto said = next_raw(channel);
    return said ? decode_error(said->payload).code() : Code::disconnected;
  }
  static void turned_away(base::FdChannel& channel, const std::string& word) {
    const auto said = next_raw(channel);
    ASSERT_TRUE(said.has_value());
    const Status why = decode_error(said->payload);
    EXPECT_EQ(why.code(), Code::no_resource) << why.to_string();
    EXPECT_NE(why.what().find(word), std::string::npos) << why.what();
    EXPECT_FALSE(next_raw(channel).has_value());
  }

  std::string folder_;
  const base::Log log_{base::Level::off, base::stderr_sink()};
  Quiet quiet_;
  Identity us_, other_{.engine = "client", .incarnation = 12};
  std::unique_ptr<Control> server_;
};

TEST_F(ControlLimits, ConnectionsAreBoundedAndAnEndMakesRoom) {
  serve({.peers = 2});
  auto first = connect_raw(path()), second = connect_raw(path());
  greet_raw(first);
  greet_raw(second);
  EXPECT_EQ(answer(first), Code::not_found);
  EXPECT_EQ(answer(second), Code::not_found);
  auto third = connect_raw(path());
  turned_away(third, "2 connections");

  auto client = test::take(Control::open(other_, quiet_, log_));
  const Status full =
      client->connect(path(), base::Deadline::after(base::Clock::steady(), 50ms)).status();
  EXPECT_EQ(full.code(), Code::no_resource) << full.to_string();
  test::send_raw(first, FrameOp::goodbye, {});
  first = base::FdChannel(base::Fd());
  auto session = client->connect(path(), base::Deadline::after(base::Clock::steady(), 10s));
  EXPECT_TRUE(session.ok()) << session.status().to_string();
  client->close(base::Deadline::after(base::Clock::steady(), 1s));
}

TEST_F(ControlLimits, OursCountToo) {
  serve({});
  other_.limits.peers = 0;
  auto client = test::take(Control::open(other_, quiet_, log_));
  const auto begin = base::Clock::steady().now();
  const Status full =
      client->connect(path(), base::Deadline::after(base::Clock::steady(), 50ms)).status();
  EXPECT_EQ(full.code(), Code::no_resource) << full.to_string();
  EXPECT_LT(base::Clock::steady().now() - begin, 5s);
  client->close(base::Deadline::after(base::Clock::steady(), 1s));
}

TEST_F(ControlLimits, WhoSaysNothingIsClosedByADeadlineAndCountsUntilThen) {
  serve({.handshakes = 2, .handshake = 300ms});
  auto mute = connect_raw(path()), slow = connect_raw(path());
  const std::byte drop{24};  // the first byte of a header, and no more
  ASSERT_EQ(::send(slow.fd(), &drop, 1, MSG_NOSIGNAL), 1);
  auto third = connect_raw(path());
  turned_away(third, "2 handshakes");
  for (base::FdChannel* each : {&mute, &slow}) {
    const auto said = next_raw(*each);
    ASSERT_TRUE(said.has_value());
    EXPECT_EQ(decode_error(said->payload).code(), Code::timed_out);
    EXPECT_FALSE(next_raw(*each).has_value());
  }
  auto good = connect_raw(path());
  greet_raw(good);
  EXPECT_EQ(answer(good), Code::not_found);
}

TEST_F(ControlLimits, WithoutFdsItWaitsAndDoesNotSpin) {
  serve({});
  auto before = connect_raw(path());
  greet_raw(before);
  EXPECT_EQ(answer(before), Code::not_found);
  auto waiting = base::FdChannel(test::take(
      base::Fd::from("socket", ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0))));
  rlimit all{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &all), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = all.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const sockaddr_un address = test::take(unix_address(path()));
  const int connected =
      ::connect(waiting.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  rusage begin{}, end{};
  ::getrusage(RUSAGE_SELF, &begin);
  std::this_thread::sleep_for(300ms);
  ::getrusage(RUSAGE_SELF, &end);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &all), 0);
  ASSERT_EQ(connected, 0);
  const auto ms = [](const rusage& use) {
    return (use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1000 +
           (use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1000;
  };
  EXPECT_LT(ms(end) - ms(begin), 150);
  greet_raw(waiting);
  EXPECT_EQ(answer(waiting), Code::not_found);
  EXPECT_EQ(answer(before), Code::not_found);
}

TEST(PeersWords, AreCutAndWriteNothingButThemselves) {
  const Hello hello{
      .engine = "a\nERROR b\x1b[2J", .process = {}, .key_share = {}, .transports = {}};
  EXPECT_EQ(test::take(decode_hello(encode(hello))).engine, "a?ERROR b?[2J");
  const Status said =
      decode_error(encode_error(Status(Code::busy, Scope::peer, std::string(3000, '\r'))));
  EXPECT_EQ(said.what(), "the peer: " + std::string(1024, '?'));
}

}  // namespace
}  // namespace linkspan::control
