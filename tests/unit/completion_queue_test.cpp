#include "engine/transfers/completion_queue.hpp"

#include <gtest/gtest.h>
#include <poll.h>

#include <thread>

#include "tests/support/take.hpp"

namespace linkspan::engine {
namespace completion_queue_test {

using test::take;

bool readable(const CompletionQueueState& queue, int milliseconds = 0) {
  pollfd bell{.fd = queue.fd(), .events = POLLIN, .revents = 0};
  return ::poll(&bell, 1, milliseconds) == 1;
}

using Cookies = std::vector<std::uint64_t>;

TEST(CompletionQueue, IsReadableWhileSomethingIsLeft) {
  const auto queue = take(CompletionQueueState::create());
  EXPECT_FALSE(readable(*queue));
  EXPECT_EQ(queue->pop(9), Cookies{});
  for (const std::uint64_t cookie : {3u, 1u, 2u}) queue->push(cookie);
  EXPECT_EQ(queue->pop(0), Cookies{});
  EXPECT_TRUE(readable(*queue));
  EXPECT_EQ(queue->pop(2), (Cookies{3, 1}));
  EXPECT_TRUE(readable(*queue));
  queue->push(4);
  EXPECT_EQ(queue->pop(~std::size_t{0}), (Cookies{2, 4}));
  EXPECT_FALSE(readable(*queue));
  queue->push(5);
  EXPECT_TRUE(readable(*queue));
}

TEST(CompletionQueue, MissesNothingThatComesWhileItIsTaken) {
  constexpr std::uint64_t kThreads = 2, kEach = 20'000;
  const auto queue = take(CompletionQueueState::create());
  std::vector<std::jthread> threads;
  for (std::uint64_t t = 0; t < kThreads; ++t)
    threads.emplace_back([&queue, t] {
      for (std::uint64_t i = 0; i < kEach; ++i) queue->push(t * kEach + i);
    });
  std::vector<std::uint64_t> next(kThreads);
  for (std::uint64_t told = 0; told < kThreads * kEach;) {
    ASSERT_TRUE(readable(*queue, 10'000)) << "after " << told;
    const Cookies cookies = queue->pop(7);
    ASSERT_FALSE(cookies.empty()) << "readable for nothing";
    for (const std::uint64_t cookie : cookies)  // each thread's in its order
      ASSERT_EQ(cookie % kEach, next[cookie / kEach]++);
    told += cookies.size();
  }
  EXPECT_FALSE(readable(*queue));
}

}  // namespace completion_queue_test
}  // namespace linkspan::engine
