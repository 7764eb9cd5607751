// Tests the introspection socket of a real Engine that does not listen for peers.
#include "control/introspection_server.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "control/socket_address.hpp"
#include "linkspan/engine.hpp"
#include "tests/support/take.hpp"

namespace linkspan::control {
namespace operators_test {

using namespace std::chrono_literals;

base::Deadline within(Duration time) { return base::Deadline::after(base::Clock::steady(), time); }

class OperatorsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/linkspan-test-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
    auto engine = Engine::open({.name = "asked", .socket_dir = folder_, .use_gpu = false});
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    engine_ = std::make_unique<Engine>(*std::move(engine));
    for (const std::string& each : introspection_sockets(folder_))
      if (each.starts_with(folder_)) socket_ = each;
    ASSERT_NE(socket_, "");
  }
  void TearDown() override {
    engine_.reset();
    std::filesystem::remove_all(folder_);
  }

  IntrospectionCall connect() const {
    auto call = IntrospectionCall::connect(socket_);
    if (!call.ok()) throw std::runtime_error(call.status().to_string());
    return *std::move(call);
  }
  Result<std::string> ask(IntrospectionOp question) const {
    IntrospectionCall call = connect();
    if (Status status = call.ask(question); !status.ok()) return status;
    return call.answer(within(10s));
  }

  std::unique_ptr<Engine> engine_;
  std::string folder_, socket_;
};

TEST_F(OperatorsTest, AnEngineThatListensNowhereTells) {
  const auto dump = ask(IntrospectionOp::dump);
  ASSERT_TRUE(dump.ok()) << dump.status().to_string();
  EXPECT_EQ(dump->find("engine \"asked\" (pid " + std::to_string(::getpid()) + ")"), 0u) << *dump;
  const auto metrics = ask(IntrospectionOp::metrics);
  ASSERT_TRUE(metrics.ok()) << metrics.status().to_string();
  EXPECT_EQ(*metrics, engine_->metrics());
}

TEST_F(OperatorsTest, AnUnknownQuestionIsUnsupported) {
  EXPECT_EQ(ask(static_cast<IntrospectionOp>(999)).status().code(), Code::unsupported);
}

TEST_F(OperatorsTest, WhoSaysNothingIsDroppedAndHoldsUpNobody) {
  std::vector<IntrospectionCall> silent;
  for (std::size_t i = 0; i < IntrospectionServer::kClients; ++i) silent.push_back(connect());
  const auto dropped = silent.front().answer(within(10s));
  EXPECT_EQ(dropped.status().code(), Code::disconnected) << dropped.status().to_string();
  EXPECT_TRUE(ask(IntrospectionOp::dump).ok());
}

TEST_F(OperatorsTest, NoMoreThanAFewAtATime) {
  // Each silent one is dropped after a while, and one that is not refused would be, after those
  // that came before it. A machine with other work may show both ends at once: then they come
  // again.
  bool before_them = false;
  for (int round = 0; round < 10 && !before_them; ++round) {
    std::vector<IntrospectionCall> silent;
    for (std::size_t i = 0; i < IntrospectionServer::kClients; ++i) silent.push_back(connect());
    IntrospectionCall late = connect();
    const auto refused = late.answer(within(10s));
    EXPECT_EQ(refused.status().code(), Code::disconnected) << refused.status().to_string();
    before_them = silent.front().answer(within(0s)).status().code() == Code::timed_out;
  }
  EXPECT_TRUE(before_them);
}

TEST_F(OperatorsTest, OneThatReadsNothingOfItsAnswerHoldsUpNobody) {
  IntrospectionCall lazy = connect();
  ASSERT_TRUE(lazy.ask(IntrospectionOp::metrics).ok());
  EXPECT_TRUE(ask(IntrospectionOp::metrics).ok());
}

/// A process that answers with the given bytes, `times` over: for 5 s, or until the caller has
/// gone.
class OtherProcess {
 public:
  OtherProcess(const std::string& folder, std::uint64_t incarnation, std::string bytes,
               std::uint64_t times)
      : socket_(test::take(listen_for_introspection(folder, incarnation))),
        call_(test::take(IntrospectionCall::connect(socket_.path))) {
    thread_ = std::jthread([this, bytes = std::move(bytes), times] {
      const base::Fd caller(::accept4(socket_.listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
      const auto limit = within(5s);
      for (std::uint64_t i = 0; i < times && !limit.passed(); ++i)
        if (::send(caller.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) return;
    });
  }
  Result<std::string> answer(Duration time) { return call_.answer(within(time)); }
  void await_sent() { thread_.join(); }

 private:
  IntrospectionSocket socket_;
  std::jthread thread_;
  IntrospectionCall call_;  // is closed first, which ends the thread
};

std::string frames_of_text(const std::string& text, int count) {
  const auto header = base::encode({.length = static_cast<std::uint32_t>(text.size()),
                                    .op = static_cast<std::uint16_t>(IntrospectionOp::text)});
  std::string out;
  for (int i = 0; i < count; ++i)
    out.append(reinterpret_cast<const char*>(header.data()), header.size()).append(text);
  return out;
}

TEST_F(OperatorsTest, AnAnswerWithoutEndIsNotAwaited) {
  constexpr auto kForEver = ~std::uint64_t{0};
  OtherProcess empty(folder_, 1, frames_of_text("", 1000), kForEver);
  EXPECT_EQ(empty.answer(10s).status().code(), Code::corrupt);
  OtherProcess slow(folder_, 2, frames_of_text("x", 1000), kForEver);
  EXPECT_EQ(slow.answer(200ms).status().code(), Code::timed_out);
}

TEST_F(OperatorsTest, AnAnswerThatIsHereIsReadAfterTheDeadline) {
  const auto header = base::encode({.op = static_cast<std::uint16_t>(IntrospectionOp::end)});
  const std::string end(reinterpret_cast<const char*>(header.data()), header.size());
  OtherProcess honest(folder_, 1, frames_of_text("x", 100) + end, 1);
  honest.await_sent();
  const auto answer = honest.answer(0s);
  ASSERT_TRUE(answer.ok()) << answer.status().to_string();
  EXPECT_EQ(*answer, std::string(100, 'x'));
}

TEST_F(OperatorsTest, AnotherUserDoesNotReachTheSocket) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root: it asks as another user";
  constexpr long kNobody = 65534, kKeep = -1;
  ASSERT_EQ(::syscall(SYS_setresuid, kKeep, kNobody, kKeep), 0);  // of this thread only
  const auto call = IntrospectionCall::connect(socket_);
  ASSERT_EQ(::syscall(SYS_setresuid, kKeep, 0L, kKeep), 0);
  EXPECT_EQ(call.status().code(), Code::permission_denied) << call.status().to_string();
}

TEST_F(OperatorsTest, LiesInAFolderOfItsUserAndNowhereElse) {
  struct stat facts {};
  ASSERT_EQ(::stat(folder_.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0700u);
  ASSERT_EQ(::lstat(socket_.c_str(), &facts), 0);
  EXPECT_TRUE(S_ISSOCK(facts.st_mode));
  EXPECT_EQ(facts.st_mode & 0777, 0600u);
  const std::string incarnation = socket_.substr(socket_.rfind('-') + 1);
  std::ifstream table("/proc/net/unix");
  for (std::string line; std::getline(table, line);)
    EXPECT_TRUE(line.find(incarnation) == std::string::npos || line.find('@') == std::string::npos)
        << line;
}

TEST_F(OperatorsTest, IsFoundFromAnotherFolder) {
  const auto found = introspection_sockets("/nonexistent");
  EXPECT_NE(std::find(found.begin(), found.end(), socket_), found.end());
}

TEST_F(OperatorsTest, NoMoreThanSomeComeInASecond) {
  const base::Time begin = base::Clock::steady().now();
  const auto limit = within(1s);
  std::size_t answered = 0;
  while (!limit.passed()) {
    auto call = IntrospectionCall::connect(socket_);
    if (!call.ok()) continue;  // they wait
    if (call->ask(static_cast<IntrospectionOp>(999)).ok() &&
        call->answer(within(3s)).status().code() == Code::unsupported)
      ++answered;
  }
  EXPECT_GT(answered, 0u);
  const auto took = base::Clock::steady().now() - begin;
  const auto touched =
      static_cast<std::size_t>(took / 1s) + 2;  // seconds, the first and last partly
  EXPECT_LE(answered, touched * IntrospectionServer::kASecond);
}

TEST_F(OperatorsTest, WhatDeadEnginesLeftIsRemoved) {
  std::vector<std::string> left;
  for (int i = 0; i < 40; ++i) {
    left.push_back(folder_ + "/linkspan-ps-" + std::to_string(i));
    const auto address = test::take(unix_address(left.back()));
    const base::Fd dead(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::bind(dead.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    const timespec old[] = {{.tv_sec = 1, .tv_nsec = 0}, {.tv_sec = 1, .tv_nsec = 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, left.back().c_str(), old, 0), 0);
  }
  auto next = Engine::open({.name = "next", .socket_dir = folder_, .use_gpu = false});
  ASSERT_TRUE(next.ok());
  for (const std::string& each : left) EXPECT_FALSE(std::filesystem::exists(each)) << each;
  EXPECT_TRUE(ask(IntrospectionOp::dump).ok());
}

TEST_F(OperatorsTest, NothingIsLeftBehind) {
  ASSERT_TRUE(engine_->close(10s).ok());
  EXPECT_EQ(IntrospectionCall::connect(socket_).status().code(), Code::not_found);
  EXPECT_FALSE(std::filesystem::exists(socket_));
}

}  // namespace operators_test
}  // namespace linkspan::control
