#include "control/control_thread.hpp"

#include <gtest/gtest.h>

#include <asio/post.hpp>
#include <new>

namespace linkspan::control {
namespace control_thread_test {

const base::Deadline at_once = base::Deadline::in(Duration::zero());

class ControlThreadTest : public ::testing::Test {
 protected:
  void start() {
    thread_.start([this] { ++resumed_; }, [] { return true; });
  }
  void stop() {
    thread_.stop();
    EXPECT_TRUE(thread_.await_end(base::Deadline::in(std::chrono::seconds(10)), false));
    EXPECT_TRUE(thread_.join());
  }

  const base::Log log_{base::Level::off, {}};
  std::atomic<int> resumed_ = 0, ran_ = 0;
  ControlThread thread_{log_};
};

TEST_F(ControlThreadTest, EndsOnceItIsStopped) {
  start();
  EXPECT_FALSE(thread_.await_end(at_once, false));
  stop();
  EXPECT_FALSE(thread_.join());
}

TEST_F(ControlThreadTest, GoesOnAndResumes_WhenAnOperationThrows) {
  start();
  asio::post(thread_.io(), [] { throw std::bad_alloc(); });
  asio::post(thread_.io(), [this] { ++ran_; });
  while (resumed_ == 0 || ran_ == 0) std::this_thread::yield();
  stop();
  EXPECT_EQ(resumed_, 1);
}

TEST_F(ControlThreadTest, RunsOperations_WhileItIsAwake) {
  thread_.stay_awake(std::chrono::hours(1));
  start();
  asio::post(thread_.io(), [this] { ++ran_; });
  while (ran_ == 0) std::this_thread::yield();
  stop();
}

TEST_F(ControlThreadTest, WasNotJoined_WhenItNeverStarted) { EXPECT_FALSE(thread_.join()); }

}  // namespace control_thread_test
}  // namespace linkspan::control
