// Tests streams, events, and their order.
#include <cstring>

#include "tests/driver_facts/fact.hpp"

namespace linkspan::test {
namespace streams_test {

class Queues : public Fact {
 protected:
  static constexpr std::size_t kGate = 0, kSecondGate = 2, kWord = 3;

  static constexpr std::uint64_t kMax = 3000;

  /// Returns how often `submit` returns on a held stream before it blocks, kMax times at most. Then
  /// the caller's thread may be blocked; another stream must work meanwhile. Releases the stream at
  /// the end.
  template <class Submit>
  std::uint64_t depth_of(Submit submit) {
    constexpr std::size_t kOther = 1;
    const CUstream held = new_stream(), other = new_stream();
    hold(held, kGate);
    std::atomic<std::uint64_t> done = 0;
    std::thread submitter([&] {
      const Current current(*cu, contexts[0]);
      while (done < kMax && submit(held) == CUDA_SUCCESS) ++done;
    });
    std::uint64_t seen = 0;
    EXPECT_TRUE(eventually([&] {  // until it has stood still for a while
      seen = done;
      return seen == kMax || stays_false([&] { return done != seen; });
    }));
    std::atomic<bool> free_to_go = false;
    std::thread neighbour([&] {
      const Current current(*cu, contexts[0]);
      EXPECT_EQ(write(other, kOther), CUDA_SUCCESS);
      free_to_go = comes(kOther);
    });
    EXPECT_TRUE(eventually([&] { return free_to_go.load(); })) << "another stream is held up too";
    EXPECT_EQ(done, seen);
    release(kGate);
    release(kSecondGate);
    neighbour.join();
    submitter.join();
    EXPECT_EQ(done, kMax);
    return seen;
  }
};

// 1021 entries on an H200 with driver 580; the library stays below half of it.
TEST_F(Queues, AFullStreamBlocksItsCallerOnly) {
  const CUdeviceptr memory = new_memory();
  std::byte* host = new_pinned();
  const std::uint64_t pairs = depth_of([&](CUstream stream) {
    const CUresult r = cu->cuMemcpyAsync(memory, address_of(host), 4096, stream);
    return r != CUDA_SUCCESS ? r : write(stream, kWord);
  });
  found(std::to_string(pairs) + " pairs of copy and WriteValue");
  EXPECT_GE(2 * pairs, 1000u);
  EXPECT_LE(2 * pairs, 1100u);
}

TEST_F(Queues, RecordsOfEventsAreNoEntries) {
  const CUevent event = new_event();
  const std::uint64_t records =
      depth_of([&](CUstream stream) { return cu->cuEventRecord(event, stream); });
  found(std::to_string(records) + " of " + std::to_string(kMax) + " records");
  EXPECT_EQ(records, kMax);
}

TEST_F(Queues, WaitsForEventsAreNoEntries) {
  const CUevent event = new_event();
  const CUstream first = new_stream();
  hold(first, kSecondGate);
  ASSERT_EQ(cu->cuEventRecord(event, first), CUDA_SUCCESS);
  const std::uint64_t waits =
      depth_of([&](CUstream stream) { return cu->cuStreamWaitEvent(stream, event, 0); });
  found(std::to_string(waits) + " of " + std::to_string(kMax) + " waits");
  EXPECT_EQ(waits, kMax);
}

class Streams : public Fact {
 protected:
  /// Submits in each round a copy there and back to `stream`, then what `tell` submits, which
  /// writes the round to word 0. The copies must have ended by then.
  template <class Tell>
  void expect_told_behind_copies(CUstream stream, const Tell& tell) {
    constexpr std::uint64_t kRounds = 200;
    const CUdeviceptr memory = new_memory();
    auto* from = reinterpret_cast<std::uint64_t*>(new_pinned());
    auto* to = reinterpret_cast<std::uint64_t*>(new_pinned());
    constexpr std::size_t kLast = kBytes / sizeof(std::uint64_t) - 1;
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      from[0] = from[kLast] = round;
      ASSERT_EQ(cu->cuMemcpyAsync(memory, address_of(from), kBytes, stream), CUDA_SUCCESS);
      ASSERT_EQ(cu->cuMemcpyAsync(address_of(to), memory, kBytes, stream), CUDA_SUCCESS);
      tell(round);
      ASSERT_TRUE(comes(0, round));
      ASSERT_EQ(std::atomic_ref(to[0]).load(), round);
      ASSERT_EQ(std::atomic_ref(to[kLast]).load(), round);
    }
  }
};

TEST_F(Streams, AWriteValueIsBehindTheCopyBeforeIt) {
  const CUstream stream = new_stream();
  expect_told_behind_copies(
      stream, [&](std::uint64_t round) { ASSERT_EQ(write(stream, 0, round), CUDA_SUCCESS); });
}

TEST_F(Streams, AWriteValueIsBehindWhatItsEventIsBehind) {
  const CUstream stream = new_stream(), beside = new_stream();
  const CUevent event = new_event();
  expect_told_behind_copies(stream, [&](std::uint64_t round) {
    ASSERT_EQ(cu->cuEventRecord(event, stream), CUDA_SUCCESS);
    ASSERT_EQ(cu->cuStreamWaitEvent(beside, event, 0), CUDA_SUCCESS);
    ASSERT_EQ(write(beside, 0, round), CUDA_SUCCESS);
  });
}

TEST_F(Streams, AWriteWithoutBarrierIsRefused) {
  constexpr unsigned kNoMemoryBarrier = 1;
  EXPECT_EQ(cu->cuStreamWriteValue64(new_stream(), word_address(0), 1, kNoMemoryBarrier),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Streams, AQueryTellsWorkFromNone) {
  const CUstream stream = new_stream();
  EXPECT_EQ(cu->cuStreamQuery(stream), CUDA_SUCCESS);
  hold(stream, 0);
  EXPECT_EQ(cu->cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  release(0);
  EXPECT_TRUE(idle(stream));
  EXPECT_EQ(cu->cuStreamQuery(stream), CUDA_SUCCESS);
}

TEST_F(Streams, NonBlockingOnesIgnoreTheNullStream) {
  const CUstream held = new_stream(), other = new_stream();
  hold(held, 0);
  EXPECT_EQ(write(nullptr, 1), CUDA_SUCCESS);
  EXPECT_TRUE(comes(1));
  hold(nullptr, 2);
  EXPECT_EQ(write(other, 3), CUDA_SUCCESS);
  EXPECT_TRUE(comes(3));
}

TEST_F(Streams, ADestroyedOneFinishesItsWork) {
  CUstream stream = nullptr;
  ASSERT_EQ(cu->cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
  hold(stream, 0);
  EXPECT_EQ(write(stream, 1), CUDA_SUCCESS);
  std::atomic<bool> returned = false;
  std::thread destroyer([&] {
    const Current current(*cu, contexts[0]);
    EXPECT_EQ(cu->cuStreamDestroy(stream), CUDA_SUCCESS);
    returned = true;
  });
  EXPECT_TRUE(eventually([&] { return returned.load(); }));
  EXPECT_EQ(word(1), 0u);
  release(0);
  EXPECT_TRUE(comes(1));
  destroyer.join();
}

TEST_F(Streams, ACopyToPageableMemoryWaitsForItsStream) {
  const CUstream stream = new_stream();
  const CUdeviceptr memory = new_memory();
  std::vector<std::byte> plain(4096);
  hold(stream, 0);
  std::atomic<bool> returned = false;
  std::thread copier([&] {
    const Current current(*cu, contexts[0]);
    EXPECT_EQ(cu->cuMemcpyAsync(address_of(plain.data()), memory, plain.size(), stream),
              CUDA_SUCCESS);
    returned = true;
  });
  EXPECT_TRUE(stays_false([&] { return returned.load(); }));
  release(0);
  copier.join();
}

TEST_F(Streams, CopiesBetweenGpusNeedNoPeerAccess) {
  if (!with_gpus(2)) return;
  const CUdeviceptr here = new_memory(0), there = new_memory(1);
  std::byte* host = new_pinned();
  for (std::size_t i = 0; i < kBytes; ++i) host[i] = static_cast<std::byte>(i * 31 >> 3);
  const CUstream stream = new_stream(0);
  ASSERT_EQ(cu->cuMemcpyAsync(here, address_of(host), kBytes, stream), CUDA_SUCCESS);
  EXPECT_EQ(cu->cuMemcpyAsync(there, here, kBytes, stream), CUDA_SUCCESS);
  std::byte* back = new_pinned();
  EXPECT_EQ(cu->cuMemcpyAsync(address_of(back), there, kBytes, stream), CUDA_SUCCESS);
  EXPECT_EQ(write(stream, 0), CUDA_SUCCESS);
  ASSERT_TRUE(comes(0));
  EXPECT_EQ(std::memcmp(back, host, kBytes), 0);
}

TEST_F(Streams, AWriteValueIsBehindACopyToAnotherGpu) {
  if (!with_gpus(2)) return;
  constexpr std::uint64_t kRounds = 100;
  const CUdeviceptr here = new_memory(0), there = new_memory(1);
  const CUstream pushing = new_stream(0), pulling = new_stream(1);
  auto* from = reinterpret_cast<std::uint64_t*>(new_pinned());
  auto* to = reinterpret_cast<std::uint64_t*>(new_pinned());
  constexpr std::size_t kLast = kBytes / sizeof(std::uint64_t) - 1;
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    from[kLast] = round;
    ASSERT_EQ(cu->cuMemcpyAsync(here, address_of(from), kBytes, pushing), CUDA_SUCCESS);
    ASSERT_EQ(cu->cuMemcpyAsync(there, here, kBytes, pushing), CUDA_SUCCESS);
    ASSERT_EQ(write(pushing, 0, round), CUDA_SUCCESS);
    ASSERT_TRUE(comes(0, round));
    // The other GPU starts to read only now, on the word of the host.
    ASSERT_EQ(cu->cuMemcpyAsync(address_of(to), there, kBytes, pulling), CUDA_SUCCESS);
    ASSERT_EQ(write(pulling, 1, round), CUDA_SUCCESS);
    ASSERT_TRUE(comes(1, round));
    ASSERT_EQ(std::atomic_ref(to[kLast]).load(), round);
  }
}

class Events : public Fact {};

TEST_F(Events, OrderStreamsOfTwoGpus) {
  if (!with_gpus(2)) return;
  const CUstream first = new_stream(0), second = new_stream(1);
  const CUevent event = new_event(0);
  hold(first, 0);
  ASSERT_EQ(cu->cuEventRecord(event, first), CUDA_SUCCESS);
  ASSERT_EQ(cu->cuStreamWaitEvent(second, event, 0), CUDA_SUCCESS);
  ASSERT_EQ(write(second, 1), CUDA_SUCCESS);
  EXPECT_TRUE(stays_false([&] { return word(1) != 0; }));
  release(0);
  EXPECT_TRUE(comes(1));
}

TEST_F(Events, AWaitIsForTheRecordBeforeIt) {
  const CUstream first = new_stream(), second = new_stream(), other = new_stream();
  const CUevent event = new_event();
  // Recorded again where nothing waits: that does not let the waiter go.
  hold(first, 0);
  ASSERT_EQ(cu->cuEventRecord(event, first), CUDA_SUCCESS);
  ASSERT_EQ(cu->cuStreamWaitEvent(second, event, 0), CUDA_SUCCESS);
  ASSERT_EQ(write(second, 1), CUDA_SUCCESS);
  ASSERT_EQ(cu->cuEventRecord(event, other), CUDA_SUCCESS);
  EXPECT_TRUE(eventually([&] { return cu->cuEventQuery(event) == CUDA_SUCCESS; }));
  EXPECT_TRUE(stays_false([&] { return word(1) != 0; }));
  // Recorded again where all waits: that does not hold it.
  hold(other, 2);
  ASSERT_EQ(cu->cuEventRecord(event, other), CUDA_SUCCESS);
  release(0);
  EXPECT_TRUE(comes(1));
  EXPECT_EQ(cu->cuEventQuery(event), CUDA_ERROR_NOT_READY);
}

TEST_F(Events, ADestroyedOneStillHoldsItsWaiter) {
  const CUstream first = new_stream(), second = new_stream();
  CUevent event = nullptr;
  ASSERT_EQ(cu->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  hold(first, 0);
  ASSERT_EQ(cu->cuEventRecord(event, first), CUDA_SUCCESS);
  ASSERT_EQ(cu->cuStreamWaitEvent(second, event, 0), CUDA_SUCCESS);
  ASSERT_EQ(write(second, 1), CUDA_SUCCESS);
  EXPECT_EQ(cu->cuEventDestroy(event), CUDA_SUCCESS);
  EXPECT_TRUE(stays_false([&] { return word(1) != 0; }));
  release(0);
  EXPECT_TRUE(comes(1));
}

TEST_F(Events, OneThatWasNeverRecordedIsDoneAndHoldsNobody) {
  const CUevent event = new_event();
  const CUstream stream = new_stream();
  EXPECT_EQ(cu->cuEventQuery(event), CUDA_SUCCESS);
  EXPECT_EQ(cu->cuStreamWaitEvent(stream, event, 0), CUDA_SUCCESS);
  EXPECT_EQ(write(stream, 0), CUDA_SUCCESS);
  EXPECT_TRUE(comes(0));
}

TEST_F(Events, OneOfAnotherGpuIsNotRecorded) {
  if (!with_gpus(2)) return;
  EXPECT_EQ(cu->cuEventRecord(new_event(1), new_stream(0)), CUDA_ERROR_INVALID_HANDLE);
}

}  // namespace streams_test
}  // namespace linkspan::test
