#include "copy/job_queue.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <list>
#include <thread>

#include "copy/staging.hpp"

namespace linkspan::copy {
namespace job_queue_test {

using namespace std::chrono_literals;

constexpr std::uint64_t kChunk = 4096;

class JobQueueTest : public ::testing::Test {
 protected:
  /// Makes a job of `chunks` chunks, in memory of `peer` unless that is 0.
  CpuJob& cut(std::uint64_t chunks, std::uint64_t peer = 0) {
    const Piece piece{.bytes = chunks * kChunk};
    CpuJob& job = jobs_.emplace_back();
    job.cut({.method = peer == 0 ? Method::cpu_threads : Method::cross_process,
             .pieces = {&piece, 1},
             .peer = peer},
            kChunk);
    return job;
  }
  CpuJob& add(std::uint64_t chunks, std::uint64_t peer = 0) {
    CpuJob& job = cut(chunks, peer);
    queue_.add(job);
    return job;
  }
  CpuJob* claim() {
    const auto claimed = queue_.claim(stop_.get_token(), staging_, false);
    return claimed ? claimed->job : nullptr;
  }

  StagingStreams streams_;
  Staging staging_{Staging::buffer_bytes(0), streams_};
  std::list<CpuJob> jobs_;
  std::stop_source stop_;
  JobQueue queue_{2};
};

TEST_F(JobQueueTest, ClaimsChunksInTheOrderOfTheJobs) {
  CpuJob &first = add(2), &second = add(1);
  EXPECT_EQ(queue_.unfinished(), 3u);
  EXPECT_EQ(claim(), &first);
  EXPECT_EQ(claim(), &first);
  EXPECT_EQ(claim(), &second);
  queue_.finish(first, {});
  EXPECT_FALSE(first.done);
  queue_.finish(first, {});
  EXPECT_TRUE(first.done);
  EXPECT_FALSE(second.done);
  EXPECT_EQ(queue_.unfinished(), 1u);
}

TEST_F(JobQueueTest, IsDoneAtOnce_WhenAJobHasNoBytes) { EXPECT_TRUE(add(0).done); }

TEST_F(JobQueueTest, DropsTheRest_WhenAChunkFails) {
  CpuJob& job = add(3);
  EXPECT_EQ(claim(), &job);
  queue_.finish(job, Status(Code::unreachable, Scope::request, "no page"));
  EXPECT_TRUE(job.done);
  EXPECT_EQ(job.status.code(), Code::unreachable);
  EXPECT_EQ(queue_.unfinished(), 0u);
}

TEST_F(JobQueueTest, ClaimsNothing_WhenItsThreadIsToStop) {
  add(1);
  stop_.request_stop();
  EXPECT_EQ(claim(), nullptr);
}

TEST_F(JobQueueTest, KeepsAPeerWithinItsShare_WhileAnotherOrderWaits) {
  CpuJob &across = add(2, 7), &local = add(1);
  EXPECT_EQ(claim(), &across);
  EXPECT_EQ(claim(), &local);
  EXPECT_EQ(claim(), &across);
  CpuJob& waiting = add(1);
  EXPECT_EQ(queue_.reserve_substitutes(nullptr), 0u) << "no executor is at an aborted job";
  EXPECT_EQ(queue_.reserve_substitutes(&waiting), 1u) << "one is beyond the share";
  EXPECT_EQ(queue_.reserve_substitutes(&waiting), 0u) << "which has its substitute";
  queue_.cancel_substitutes(1);
  EXPECT_EQ(queue_.reserve_substitutes(&waiting), 1u);
}

/// Four executors, each of which claims one chunk and keeps it until the end of the test.
class RestingExecutors : public JobQueueTest {
 protected:
  RestingExecutors() {
    for (std::jthread& each : threads_)
      each = std::jthread([&](const std::stop_token& stop) {
        const Staging staging(Staging::buffer_bytes(0), streams_);
        if (const auto claimed = four_.claim(stop, staging, false)) {
          ++claims_;
          while (!stop.stop_requested()) std::this_thread::sleep_for(1ms);
          four_.finish(*claimed->job, {});
        }
      });
    std::this_thread::sleep_for(20ms);  // until most of them rest
  }
  RestingExecutors(const RestingExecutors&) = delete;
  RestingExecutors& operator=(const RestingExecutors&) = delete;
  ~RestingExecutors() override {
    for (std::jthread& each : threads_) each.request_stop();
    four_.wake_all();
  }
  /// Returns whether that many chunks were claimed, within 10 s.
  bool claimed(unsigned count) const {
    for (const auto limit = base::Deadline::in(10s); claims_ != count && !limit.passed();)
      std::this_thread::sleep_for(1ms);
    return claims_ == count;
  }

  JobQueue four_{4};
  std::atomic<unsigned> claims_{0};
  std::array<std::jthread, 4> threads_;  // last: they use all of the above
};

TEST_F(RestingExecutors, CallEachOther_WhenThereAreManyChunks) {
  four_.add(cut(8));
  EXPECT_TRUE(claimed(4));
}

TEST_F(RestingExecutors, AreCalledForAJob_WhereTheOneThatWokeHasAnothers) {
  four_.add(cut(2, 7));
  EXPECT_TRUE(claimed(1));
  four_.add(cut(1));
  EXPECT_TRUE(claimed(3)) << "the second chunk of the first job, and the job";
}

TEST_F(JobQueueTest, ReservesASubstituteForEachExecutorAtAnAbortedJob) {
  CpuJob& job = add(3);
  EXPECT_EQ(claim(), &job);
  EXPECT_EQ(claim(), &job);
  queue_.abort(job);
  EXPECT_EQ(job.status.code(), Code::canceled);
  EXPECT_EQ(queue_.reserve_substitutes(nullptr), 2u);
  queue_.finish(job, {});
  queue_.finish(job, {});
  EXPECT_TRUE(job.done);
  EXPECT_FALSE(queue_.claim(stop_.get_token(), staging_, true)) << "the executors have returned";
}

/// Two substitutes have chunks of the only order, so both executors rest. Then the order needs
/// none.
TEST_F(JobQueueTest, CallsAnExecutor_WhenTheSubstitutesThatHadTheChunksEnd) {
  CpuJob& job = add(6, 7);
  EXPECT_EQ(claim(), &job);
  EXPECT_EQ(claim(), &job);
  ASSERT_EQ(queue_.reserve_substitutes(&cut(1)), 1u);
  std::atomic<bool> claimed{false};
  std::jthread executor([&] { claimed = claim() == &job; });
  std::this_thread::sleep_for(20ms);  // it rests by now
  EXPECT_FALSE(claimed);
  queue_.finish(job, {});
  queue_.finish(job, {});
  EXPECT_FALSE(queue_.claim(stop_.get_token(), staging_, true)) << "the substitute ends";
  const auto limit = base::Deadline::in(10s);
  while (!claimed && !limit.passed()) std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(claimed);
  stop_.request_stop();
  queue_.wake_all();
}

}  // namespace job_queue_test
}  // namespace linkspan::copy
