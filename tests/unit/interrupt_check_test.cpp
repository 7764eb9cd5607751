// Tests that an InterruptCheck ends each wait of its thread, and is called without a lock.
#include "linkspan/interrupt_check.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <future>

#include "linkspan/engine.hpp"
#include "tests/support/take.hpp"

namespace linkspan::test {
namespace interrupt_check_test {

using namespace std::chrono_literals;

class InterruptCheckTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto here = Engine::open({.name = "here", .use_gpu = false});
    auto there = Engine::open({.name = "there", .use_gpu = false});
    ASSERT_TRUE(here.ok() && there.ok());
    here_.emplace(*std::move(here));
    there_.emplace(*std::move(there));
    ASSERT_TRUE(there_->listen().ok());
    auto peer = here_->connect(there_->address());
    ASSERT_TRUE(peer.ok()) << peer.status().to_string();
    peer_ = *std::move(peer);
  }

  /// Returns how `wait` ended once the check had answered "go on" twice. The check calls the
  /// Engine, which it could not if the wait held a lock.
  Code interrupted(const std::function<Status()>& wait) {
    int asked = 0;
    const InterruptCheck check([&] {
      (void)here_->dump();
      (void)here_->notifications();
      return ++asked > 2;
    });
    const Code code = wait().code();
    EXPECT_EQ(asked, 3);
    EXPECT_TRUE(check.interrupted());
    return code;
  }

  std::optional<Engine> here_, there_;
  Peer peer_;
};

TEST_F(InterruptCheckTest, EndsAccept) {
  EXPECT_EQ(interrupted([&] { return here_->accept(1h).status(); }), Code::canceled);
}

TEST_F(InterruptCheckTest, EndsConnect_WhenNobodyListens) {
  EXPECT_EQ(interrupted([&] { return here_->connect("nobody_is_there", 1h).status(); }),
            Code::canceled);
}

TEST_F(InterruptCheckTest, EndsAwaitVersion_AndTheWaitOverThere) {
  for (int i = 0; i < 100; ++i) {  // 64 may wait at a peer: those that gave up do not
    const InterruptCheck check([] { return true; });
    ASSERT_EQ(peer_.await_version("none", 0, 1h).status().code(), Code::canceled) << i;
  }
  EXPECT_EQ(interrupted([&] { return peer_.await_version("none", 0, 1h).status(); }),
            Code::canceled);
}

TEST_F(InterruptCheckTest, EndsNotifications) {
  EXPECT_EQ(interrupted([&] {
              EXPECT_TRUE(here_->notifications(1h).empty());
              return Status();
            }),
            Code::ok);
}

TEST_F(InterruptCheckTest, EndsClose_WhichMayBeRepeated) {
  auto memory = here_->allocate_shared(4096);
  ASSERT_TRUE(memory.ok());
  const auto received = peer_.recv(1, memory->data(), 64, {.deadline = 1h});
  ASSERT_TRUE(received.ok());
  {
    const InterruptCheck check([] { return true; });
    const Status status = here_->close(1h);
    EXPECT_TRUE(status.ok() || status.code() == Code::canceled) << status.to_string();
  }
  EXPECT_TRUE(here_->close(30s).ok());
}

TEST_F(InterruptCheckTest, IsOfItsThreadAndTheInnermostOne) {
  int outer = 0;
  const InterruptCheck check([&] { return ++outer > 1000; });
  {
    const InterruptCheck inner([] { return true; });
    EXPECT_EQ(here_->accept(1h).status().code(), Code::canceled);
    EXPECT_TRUE(InterruptCheck::has_ended());
    const auto other = std::async(std::launch::async, [&] {
      EXPECT_FALSE(InterruptCheck::exists());
      EXPECT_EQ(there_->accept(10s).status().code(), Code::ok);
    });
  }
  EXPECT_FALSE(InterruptCheck::has_ended());
  EXPECT_EQ(here_->accept(1ms).status().code(), Code::timed_out);
  EXPECT_FALSE(check.interrupted());
}

}  // namespace interrupt_check_test
}  // namespace linkspan::test
