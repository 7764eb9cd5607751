// The operator's socket of a real Engine, which does not listen for peers.
#include "control/operators.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>

#include "control/handshake.hpp"
#include "linkspan/engine.hpp"

namespace linkspan::control {
namespace operators_test {

using namespace std::chrono_literals;

base::Deadline within(Duration time) { return base::Deadline::after(base::Clock::steady(), time); }

class OperatorsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto before = sockets();
    auto engine = Engine::open({.name = "asked", .use_gpu = false});
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    engine_ = std::make_unique<Engine>(*std::move(engine));
    for (const std::string& each : sockets())
      if (std::find(before.begin(), before.end(), each) == before.end())
        if (auto call = OperatorCall::connect(each); call.ok() && call->pid() == ::getpid())
          socket_ = each;
    ASSERT_NE(socket_, "");
  }
  static std::vector<std::string> sockets() {
    auto found = operator_sockets();
    return found.ok() ? *std::move(found) : std::vector<std::string>();
  }

  OperatorCall connect() const {
    auto call = OperatorCall::connect(socket_);
    if (!call.ok()) throw std::runtime_error(call.status().to_string());
    return *std::move(call);
  }
  Result<std::string> ask(OperatorOp question) const {
    OperatorCall call = connect();
    if (Status status = call.ask(question); !status.ok()) return status;
    return call.answer(within(10s));
  }

  std::unique_ptr<Engine> engine_;
  std::string socket_;
};

TEST_F(OperatorsTest, AnEngineThatListensNowhereTells) {
  const auto dump = ask(OperatorOp::dump);
  ASSERT_TRUE(dump.ok()) << dump.status().to_string();
  EXPECT_EQ(dump->find("engine \"asked\" (pid " + std::to_string(::getpid()) + ")"), 0u) << *dump;
  const auto metrics = ask(OperatorOp::metrics);
  ASSERT_TRUE(metrics.ok()) << metrics.status().to_string();
  EXPECT_EQ(*metrics, engine_->metrics());
}

TEST_F(OperatorsTest, AnUnknownQuestionIsUnsupported) {
  EXPECT_EQ(ask(static_cast<OperatorOp>(999)).status().code(), Code::unsupported);
}

TEST_F(OperatorsTest, WhoSaysNothingIsDroppedAndHoldsUpNobody) {
  std::vector<OperatorCall> silent;
  for (std::size_t i = 0; i < Operators::kClients; ++i) silent.push_back(connect());
  const auto dropped = silent.front().answer(within(10s));
  EXPECT_EQ(dropped.status().code(), Code::disconnected) << dropped.status().to_string();
  EXPECT_TRUE(ask(OperatorOp::dump).ok());
}

TEST_F(OperatorsTest, NoMoreThanAFewAtATime) {
  std::vector<OperatorCall> silent;
  for (std::size_t i = 0; i < Operators::kClients; ++i) silent.push_back(connect());
  OperatorCall late = connect();
  const auto refused = late.answer(within(1500ms));
  EXPECT_EQ(refused.status().code(), Code::disconnected) << refused.status().to_string();
}

TEST_F(OperatorsTest, OneThatReadsNothingOfItsAnswerHoldsUpNobody) {
  OperatorCall lazy = connect();
  ASSERT_TRUE(lazy.ask(OperatorOp::metrics).ok());
  EXPECT_TRUE(ask(OperatorOp::metrics).ok());
}

TEST_F(OperatorsTest, AnotherUserIsRefusedAndToldWhy) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root: it asks as another user";
  constexpr long kNobody = 65534, kKeep = -1;
  ASSERT_EQ(::syscall(SYS_setresuid, kKeep, kNobody, kKeep), 0);  // of this thread only
  auto call = OperatorCall::connect(socket_);
  ASSERT_EQ(::syscall(SYS_setresuid, kKeep, 0L, kKeep), 0);
  ASSERT_TRUE(call.ok()) << call.status().to_string();
  (void)call->ask(OperatorOp::dump);
  const auto refused = call->answer(within(10s));
  EXPECT_EQ(refused.status().code(), Code::permission_denied) << refused.status().to_string();
  EXPECT_NE(refused.status().what().find("65534"), std::string::npos);
}

TEST_F(OperatorsTest, NothingIsLeftBehind) {
  ASSERT_TRUE(engine_->close(10s).ok());
  EXPECT_EQ(OperatorCall::connect(socket_).status().code(), Code::not_found);
  const auto left = sockets();
  EXPECT_EQ(std::find(left.begin(), left.end(), socket_), left.end());
}

}  // namespace operators_test
}  // namespace linkspan::control
