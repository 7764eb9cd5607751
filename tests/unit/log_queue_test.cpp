#include "base/log_queue.hpp"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "base/mutex.hpp"

namespace linkspan::base {
namespace log_queue_test {

using namespace std::chrono_literals;

Deadline within(Duration time) { return Deadline::after(Clock::steady(), time); }

/// Records what an Outlet delivers, and can block it.
struct Heard {
  Mutex mutex;
  Condition changed;
  bool closed LINKSPAN_GUARDED_BY(mutex) = false, standing LINKSPAN_GUARDED_BY(mutex) = false;
  std::vector<std::string> lines LINKSPAN_GUARDED_BY(mutex);

  void close() LINKSPAN_EXCLUDES(mutex) {
    const MutexLock lock(mutex);
    closed = true;
  }
  void open() LINKSPAN_EXCLUDES(mutex) {
    const MutexLock lock(mutex);
    closed = false;
    changed.notify_all();
  }
  /// Returns false if nothing stands at the door within 10 s.
  bool wait_until_standing() LINKSPAN_EXCLUDES(mutex) {
    const MutexLock lock(mutex);
    const Deadline limit = within(10s);
    while (!standing && !limit.passed()) changed.wait(mutex, limit);
    return standing;
  }
  std::vector<std::string> all() LINKSPAN_EXCLUDES(mutex) {
    const MutexLock lock(mutex);
    return lines;
  }
};

class Door final : public LogQueue::Outlet {
 public:
  explicit Door(std::shared_ptr<Heard> heard) : heard_(std::move(heard)) {}
  void deliver(Level, std::string_view line) override {
    const MutexLock lock(heard_->mutex);
    heard_->standing = true;
    heard_->changed.notify_all();
    while (heard_->closed) heard_->changed.wait(heard_->mutex, within(60s));
    heard_->standing = false;
    heard_->lines.emplace_back(line);
    heard_->changed.notify_all();
  }

 private:
  const std::shared_ptr<Heard> heard_;  // also the test's
};

TEST(LogQueue, DeliversInOrder) {
  const auto heard = std::make_shared<Heard>();
  LogQueue queue(std::make_unique<Door>(heard));
  for (int i = 0; i < 100; ++i) queue.push(Level::info, std::to_string(i));
  ASSERT_TRUE(queue.flush(within(10s)));
  EXPECT_TRUE(queue.empty());
  const auto lines = heard->all();
  ASSERT_EQ(lines.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(lines[static_cast<std::size_t>(i)], std::to_string(i));
}

TEST(LogQueue, CountsLinesAndDoesNotWait_WhenItsOutletStandsStill) {
  const auto heard = std::make_shared<Heard>();
  heard->close();
  LogQueue queue(std::make_unique<Door>(heard));
  queue.push(Level::info, "first");
  ASSERT_TRUE(heard->wait_until_standing());
  const std::string line(1000, 'x');
  constexpr std::size_t kPushed = 5000, kRoom = LogQueue::kMaxBytes / (1000 + LogQueue::kLineCost);
  for (std::size_t i = 0; i < kPushed; ++i) queue.push(Level::info, line);
  EXPECT_FALSE(queue.flush(within(1ms)));
  heard->open();
  ASSERT_TRUE(queue.flush(within(10s)));
  const auto lines = heard->all();
  ASSERT_EQ(lines.size(), 1 + kRoom + 1);
  EXPECT_EQ(lines.back().find(std::to_string(kPushed - kRoom) + " lines of the log are lost"), 0u)
      << lines.back();
}

TEST(LogQueue, DeliversWhatWaits_WhenItEnds) {
  const auto heard = std::make_shared<Heard>();
  {
    LogQueue queue(std::make_unique<Door>(heard));
    for (int i = 0; i < 3; ++i) queue.push(Level::info, "line");
  }
  EXPECT_EQ(heard->all().size(), 3u);
}

TEST(LogQueue, EndsAndDeliversNothingMore_WhenItsOutletStandsStill) {
  const auto heard = std::make_shared<Heard>();
  heard->close();
  {
    LogQueue queue(std::make_unique<Door>(heard));
    queue.push(Level::info, "stands");
    queue.push(Level::info, "waits behind it");
    ASSERT_TRUE(heard->wait_until_standing());
  }
  heard->open();
  const MutexLock lock(heard->mutex);
  const Deadline limit = within(10s);
  while (heard->lines.empty() && !limit.passed()) heard->changed.wait(heard->mutex, limit);
  EXPECT_EQ(heard->lines, std::vector<std::string>{"stands"});
}

/// Pushes, flushes and ends its queue from inside.
class Within final : public LogQueue::Outlet {
 public:
  explicit Within(std::unique_ptr<LogQueue>& queue) : queue_(queue) {}
  void deliver(Level, std::string_view line) override {
    if (line != "first") return;
    queue_->push(Level::info, "more");
    EXPECT_FALSE(queue_->flush(within(60s))) << "it waits for itself";
    queue_ = nullptr;
    const std::shared_ptr<std::atomic<bool>> ended = ended_;
    *ended = true;
    ended->notify_all();
  }
  // Shared with the test, because the outlet ends with its thread.
  const std::shared_ptr<std::atomic<bool>> ended_ = std::make_shared<std::atomic<bool>>(false);

 private:
  std::unique_ptr<LogQueue>& queue_;
};

TEST(LogQueue, MayBeUsedAndEndedByItsOutlet) {
  std::unique_ptr<LogQueue> queue;
  auto outlet = std::make_unique<Within>(queue);
  const auto ended = outlet->ended_;
  queue = std::make_unique<LogQueue>(std::move(outlet));
  queue->push(Level::info, "first");
  ended->wait(false);
  EXPECT_EQ(queue, nullptr);
}

}  // namespace log_queue_test
}  // namespace linkspan::base
