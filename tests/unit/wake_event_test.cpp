#include "base/wake_event.hpp"

#include <gtest/gtest.h>
#include <poll.h>

#include <thread>

#include "tests/support/take.hpp"

namespace linkspan::base {
namespace wake_event_test {

bool is_readable(const WakeEvent& event, int timeout_ms = 0) {
  pollfd wait{.fd = event.fd(), .events = POLLIN, .revents = 0};
  return ::poll(&wait, 1, timeout_ms) == 1;
}

TEST(WakeEvent, IsReadableFromWakeToClear) {
  const auto event = test::take(WakeEvent::create());
  EXPECT_FALSE(is_readable(event));
  event.clear();  // does not block
  for (int i = 0; i < 3; ++i) event.wake();
  EXPECT_TRUE(is_readable(event));
  event.clear();
  EXPECT_FALSE(is_readable(event)) << "one clear() takes all wakes";
}

TEST(WakeEvent, WakesAThreadThatPolls) {
  const auto event = test::take(WakeEvent::create());
  const std::jthread waker([&] { event.wake(); });
  EXPECT_TRUE(is_readable(event, 10'000));
}

}  // namespace wake_event_test
}  // namespace linkspan::base
