// Tests the log of a store's server: what is written at once, what is only counted, and which
// thread calls the user.
#include "store/server_log.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.hpp"
#include "tests/support/take.hpp"

namespace linkspan::store {
namespace store_server_log_test {

using namespace std::chrono_literals;

/// The lines that a callback has received. Any thread.
class Lines {
 public:
  ServerLog::Callback callback() {
    return [this](std::string_view line) {
      const base::MutexLock lock(mutex_);
      all_.emplace_back(line);
      caller_ = std::this_thread::get_id();
      changed_.notify_all();
    };
  }
  /// Returns all lines once there are `count`, or after 10 s.
  std::vector<std::string> wait(std::size_t count) {
    const base::MutexLock lock(mutex_);
    const auto limit = base::Deadline::in(10s);
    while (all_.size() < count && !limit.passed()) changed_.wait(mutex_, limit);
    return all_;
  }
  std::size_t count() { return wait(0).size(); }
  std::thread::id caller() {
    const base::MutexLock lock(mutex_);
    return caller_;
  }

 private:
  base::Mutex mutex_;
  base::Condition changed_;
  std::vector<std::string> all_ LINKSPAN_GUARDED_BY(mutex_);
  std::thread::id caller_ LINKSPAN_GUARDED_BY(mutex_);
};

/// Warns until a line was suppressed, which takes two calls unless a second ends between them.
/// Returns the number of lines that were written.
std::size_t suppress_one(ServerLog& log) {
  std::size_t calls = 0;
  for (const auto limit = base::Deadline::in(10s); !log.due() && !limit.passed(); ++calls)
    log.warn("a reason");
  return calls - 1;
}

TEST(ServerLog, WritesNothing_WhenThereIsNoCallback) {
  ServerLog log({});
  for (int i = 0; i < 3; ++i) log.warn("a reason");
  log.write_suppressed(base::Time::max());
  EXPECT_EQ(log.due(), std::nullopt) << "the server would wake for it";
}

TEST(ServerLog, CallsTheUserOnAnotherThread_WhenALineIsWritten) {
  Lines lines;
  ServerLog log(lines.callback());
  log.warn("the connection of 10.0.0.1 was closed");
  EXPECT_EQ(lines.wait(1),
            std::vector<std::string>{"store: the connection of 10.0.0.1 was closed"});
  EXPECT_NE(lines.caller(), std::this_thread::get_id());
  EXPECT_EQ(log.due(), std::nullopt);
}

TEST(ServerLog, WritesTheNumberOfTheOthers_WhenTheirSecondIsOver) {
  Lines lines;
  ServerLog log(lines.callback());
  const std::size_t written = suppress_one(log);
  ASSERT_TRUE(log.due());
  const base::Time due = *log.due();
  EXPECT_LE(due, base::Clock::steady().now() + base::RepeatedLine::kPeriod);
  log.write_suppressed(due - 1ns);
  EXPECT_TRUE(log.due()) << "it is not over";
  log.write_suppressed(due);
  EXPECT_EQ(log.due(), std::nullopt);
  log.write_suppressed(due + 1h);  // nothing is left
  log.warn("another reason");
  std::vector<std::string> expected(written, "store: a reason");
  expected.insert(expected.end(),
                  {"store: 1 more connections were closed", "store: another reason"});
  EXPECT_EQ(lines.wait(written + 2), expected);
}

/// The server may have nothing else to wake for.
TEST(ServerLog, WritesTheNumberOfTheOthers_WhenItWarnsAfterTheirSecond) {
  Lines lines;
  ServerLog log(lines.callback());
  const std::size_t written = suppress_one(log);
  const auto limit = base::Deadline::in(10s);
  while (base::Clock::steady().now() < *log.due() && !limit.passed()) std::this_thread::yield();
  log.warn("another reason");
  const auto all = lines.wait(written + 2);
  ASSERT_EQ(all.size(), written + 2);
  EXPECT_EQ(all[written], "store: 1 more connections were closed");
  EXPECT_EQ(all[written + 1], "store: another reason");
}

TEST(ServerLog, WritesTheNumberOfTheOthers_WhenItEndsBeforeTheirSecond) {
  Lines lines;
  std::size_t written = 0;
  {
    ServerLog log(lines.callback());
    written = suppress_one(log);
  }
  const std::size_t came = lines.count();  // nothing comes after the destructor
  ASSERT_EQ(came, written + 1);
  EXPECT_EQ(lines.wait(came).back(), "store: 1 more connections were closed");
}

/// A user whose callback does not return keeps the server's thread no longer.
TEST(ServerLog, DoesNotWait_WhenTheCallbackDoesNotReturn) {
  struct Held {
    base::Mutex mutex;
    base::Condition changed;
    bool entered LINKSPAN_GUARDED_BY(mutex) = false, released LINKSPAN_GUARDED_BY(mutex) = false;
  };
  const auto held = std::make_shared<Held>();  // shared with the callback, which outlives the test
  const auto limit = base::Deadline::in(20s);
  {
    ServerLog log([held, limit](std::string_view) {
      const base::MutexLock lock(held->mutex);
      held->entered = true;
      held->changed.notify_all();
      while (!held->released && !limit.passed()) held->changed.wait(held->mutex, limit);
    });
    log.warn("a reason");
    {
      const base::MutexLock lock(held->mutex);
      while (!held->entered && !limit.passed()) held->changed.wait(held->mutex, limit);
      ASSERT_TRUE(held->entered);
    }
    for (int i = 0; i < 1000; ++i) log.warn("a reason");
  }
  EXPECT_FALSE(limit.passed());
  const base::MutexLock lock(held->mutex);
  held->released = true;
  held->changed.notify_all();
}

}  // namespace store_server_log_test
}  // namespace linkspan::store
