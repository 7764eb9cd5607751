#include "copy/job_queue.hpp"

#include <gtest/gtest.h>

#include <list>

#include "copy/staging.hpp"

namespace linkspan::copy {
namespace job_queue_test {

constexpr std::uint64_t kChunk = 4096;

class JobQueueTest : public ::testing::Test {
 protected:
  /// Adds a job of so many chunks. With a peer: of that peer's memory.
  CpuJob& add(std::uint64_t chunks, std::uint64_t peer = 0) {
    const Piece piece{.bytes = chunks * kChunk};
    CpuJob& job = jobs_.emplace_back();
    job.cut({.method = peer == 0 ? Method::cpu_threads : Method::cross_process,
             .pieces = {&piece, 1},
             .peer = peer},
            kChunk);
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

}  // namespace job_queue_test
}  // namespace linkspan::copy
