#include "engine/calls/call_queue.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <new>
#include <set>
#include <vector>

#include "base/interrupt.hpp"
#include "tests/unit/engine_pair.hpp"

namespace linkspan::engine {
namespace call_queue_test {

using namespace std::chrono_literals;
using test::eventually, test::is, test::take;
using When = transport::PollHint::When;
using State = std::shared_ptr<FutureState>;  // also the CallQueue's

const Status kClosed(Code::canceled, Scope::process, "the test has closed it");

base::Time now() { return base::Clock::steady().now(); }
Status end_of(const State& state) { return state->wait(base::Deadline::in(10s)); }

class CallQueueTest : public ::testing::Test {
 protected:
  ~CallQueueTest() override {
    queue_.close(kClosed);
    EXPECT_TRUE(queue_.end(base::Deadline::in(10s)));
    EXPECT_EQ(running_.load(), 0u);
  }
  /// Starts a call that goes on until its Future has ended.
  State start_endless(const std::string& target, Duration timeout = 1h) {
    return queue_.start(target, timeout, [this](FutureState&, Duration) {
      ++running_;
      {
        const base::MutexLock lock(mutex_);
        const auto limit = base::Deadline::in(20s);
        while (!limit.passed() && !base::wait_or_interrupted(never_, mutex_, limit)) {
        }
      }
      --running_;
    });
  }
  /// Starts a call that is done as soon as it has begun.
  State start_short(const std::string& target, Duration timeout = 1h) {
    return queue_.start(target, timeout, [](FutureState& state, Duration) { state.finish({}); });
  }
  /// Starts endless calls of different targets until no thread is left.
  std::vector<State> fill() {
    std::vector<State> all;
    for (std::size_t i = 0; i < CallQueue::kMaxThreads; ++i)
      all.push_back(start_endless("fill " + std::to_string(i)));
    EXPECT_TRUE(eventually([&] { return running_ == CallQueue::kMaxThreads; }));
    return all;
  }

  std::atomic<std::size_t> running_{0};
  base::Mutex mutex_;
  base::Condition never_;
  const std::unique_ptr<ProgressThread> progress_ = take(ProgressThread::create());
  CallQueue queue_{base::kThreadNamed<"ls-test">, *progress_};
};

TEST_F(CallQueueTest, GivesACallTheTimeThatIsLeft) {
  std::atomic<Duration::rep> left{0};
  const State state = queue_.start("x", 1h, [&](FutureState& its, Duration time) {
    left = time.count();
    its.finish({}, std::make_shared<const int>(7));
  });
  EXPECT_TRUE(is(end_of(state), Code::ok));
  EXPECT_EQ(*static_cast<const int*>(state->value()), 7);
  EXPECT_GT(Duration(left), 59min);
  EXPECT_LE(Duration(left), 1h);
}

TEST_F(CallQueueTest, RunsCallsOfOneTargetOneAfterTheOther) {
  const State first = start_endless("one"), second = start_short("one");
  EXPECT_TRUE(is(end_of(start_short("another")), Code::ok));
  EXPECT_TRUE(is(second->wait(base::Deadline::in(0s)), Code::pending, "the call goes on"));
  first->finish(kClosed);
  EXPECT_TRUE(is(end_of(second), Code::ok));
}

TEST_F(CallQueueTest, EndsACallTimedOut_WhenNoThreadIsFreeBeforeItsDeadline) {
  EXPECT_EQ(queue_.expire(now()).when, When::idle);
  const auto all = fill();
  const State late = start_short("late", 1ms), later = start_short("later");
  ASSERT_TRUE(eventually([&] {
    (void)queue_.expire(now());
    return late->done();
  }));
  EXPECT_TRUE(is(end_of(late), Code::timed_out, "late: not begun, because 8 other calls"));
  EXPECT_FALSE(later->done());
  const transport::PollHint next = queue_.expire(now());
  EXPECT_EQ(next.when, When::at);
  EXPECT_GT(next.at, now());
  EXPECT_TRUE(next.patient);
}

TEST_F(CallQueueTest, ExpectsNoExpirySoon_WhenATimeOutIsTheLongest) {
  const auto all = fill();
  const State endless = start_short("endless", Duration::max());
  for (int i = 0; i < 2; ++i) {
    const transport::PollHint next = queue_.expire(now());
    EXPECT_EQ(next.when, When::at);
    EXPECT_GT(next.at, now() + 30min);
  }
  all.front()->finish(kClosed);
  EXPECT_TRUE(is(end_of(endless), Code::ok));
}

TEST_F(CallQueueTest, BeginsNoCall_WhenItsDeadlineHasPassed) {
  std::atomic<bool> begun{false};
  const State state = queue_.start("x", 0s, [&](FutureState&, Duration) { begun = true; });
  EXPECT_TRUE(is(end_of(state), Code::timed_out, "x: not begun"));
  EXPECT_FALSE(begun);
}

TEST_F(CallQueueTest, RefusesMoreThanItsLimit) {
  std::vector<State> all;
  for (std::size_t i = 0; i < CallQueue::kMaxCalls; ++i) all.push_back(start_endless("one"));
  EXPECT_TRUE(is(end_of(start_short("two")), Code::no_resource,
                 "two: 1024 calls of its kind are outstanding"));
  for (const State& each : all) each->finish(kClosed);
  EXPECT_TRUE(eventually([&] { return end_of(start_short("two")).ok(); }));
}

TEST_F(CallQueueTest, EndsAllCalls_WhenItCloses) {
  auto all = fill();
  all.push_back(start_short("queued"));
  queue_.close(kClosed);
  for (const State& each : all)
    EXPECT_TRUE(is(each->wait(base::Deadline::in(0s)), Code::canceled, kClosed.what()));
  EXPECT_TRUE(is(start_short("after")->wait(base::Deadline::in(0s)), Code::canceled));
  EXPECT_TRUE(queue_.end(base::Deadline::in(10s)));
  EXPECT_EQ(running_.load(), 0u);
}

TEST_F(CallQueueTest, EndsACallWithAnError_WhenThereIsNoMemory) {
  const State state = queue_.start("x", 1h, [](FutureState&, Duration) { throw std::bad_alloc(); });
  EXPECT_TRUE(is(end_of(state), Code::system, "out of memory"));
}

TEST_F(CallQueueTest, DeliversEachCookieOnce) {
  const auto cookies = take(CompletionQueueState::create());
  std::set<std::uint64_t> expected, told;
  std::vector<State> all;
  for (std::uint64_t i = 0; i < 100; ++i) {
    all.push_back(start_short("target " + std::to_string(i % 10)));
    EXPECT_TRUE(is(all.back()->attach(cookies, i), Code::ok));
    expected.insert(i);
  }
  EXPECT_TRUE(is(all.back()->attach(cookies, 0), Code::invalid_argument,
                 "the future was added to a completion queue before"));
  std::size_t count = 0;
  EXPECT_TRUE(eventually([&] {
    for (const std::uint64_t cookie : cookies->pop(7)) told.insert(cookie), ++count;
    return count == all.size();
  }));
  EXPECT_EQ(told, expected);
}

TEST_F(CallQueueTest, FinishesOnce) {
  const State state = start_endless("x");
  EXPECT_TRUE(state->finish({}));
  EXPECT_FALSE(state->finish(kClosed));
  EXPECT_TRUE(is(end_of(state), Code::ok));
}

TEST(FutureState, IsDead_InAForkedChild) {
  const auto cookies = take(CompletionQueueState::create());
  FutureState state;
  const pid_t child = ::fork();
  if (child == 0) {
    const auto dead = [](const Status& status) {
      return is(status, Code::invalid_argument, "this process was forked from the one that made");
    };
    const bool refused = dead(state.wait(base::Deadline::in(1s))) && dead(state.attach(cookies, 1));
    state.cancel();
    ::_exit(refused && !state.done() ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(is(state.attach(cookies, 1), Code::ok));
  state.cancel();
  EXPECT_TRUE(is(state.wait(base::Deadline::in(0s)), Code::canceled, "the call was canceled"));
  EXPECT_EQ(cookies->pop(9), std::vector<std::uint64_t>{1});
}

}  // namespace call_queue_test
}  // namespace linkspan::engine
