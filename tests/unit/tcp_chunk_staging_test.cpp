// Tests chunks of GPU memory on their way to a socket: how many a GPU copies ahead, in which order
// they leave, and what becomes of those that it cannot copy.
#include "transport/tcp/chunk_staging.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/fake_cuda/controls.hpp"
#include "tests/support/take.hpp"
#include "tests/unit/cuda_fixture.hpp"

namespace linkspan::transport::tcp {
namespace tcp_chunk_staging_test {

using namespace std::chrono_literals;
using test::take, test::must;

constexpr std::size_t kAhead = copy::Staging::kBuffersPerGpu, kChunks = kAhead + 2;
constexpr std::uint64_t kBytes = (kChunks - 1) * kMaxChunk + 100;

class TcpChunkStagingOnDevice : public cuda::OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (!fake_) GTEST_SKIP() << "needs the simulated driver";
    fake_.reset();
    there_.emplace(take(cuda::DeviceBuffer::create(*scope, kBytes)));
    bytes_.resize(kBytes);
    for (std::size_t i = 0; i < kBytes; ++i) bytes_[i] = cuda::pattern(i, 1);
    auto stream = take(cuda::Stream::create(*scope));
    must(stream.copy(*scope, there_->address(), reinterpret_cast<std::uint64_t>(bytes_.data()),
                     kBytes));
    finish(stream);
    memory_->device = device;
    memory_->address = there_->address();
  }
  void TearDown() override {
    for (const auto limit = base::Deadline::in(10s); !staging_.stop() && !limit.passed();)
      std::this_thread::yield();
    if (fake_) fake_.reset();
    OnDevice::TearDown();
  }
  /// Gives the group a put of the memory, or the answer to the peer's get of it.
  std::shared_ptr<Outgoing> put(std::uint64_t id, FrameType type = FrameType::put,
                                std::uint64_t bytes = kBytes) {
    auto batch = std::make_shared<Outgoing>();
    batch->type = type;
    batch->id = id;
    batch->use = RegionUse(memory_);
    batch->extents = {{memory_->address, 0, bytes}};
    group_.put(batch);
    return batch;
  }
  /// Gives the group a small put, cut into `frames` frames as it is for several connections.
  void put_shared(std::uint64_t id, std::size_t frames) {
    constexpr std::uint64_t kFrame = 100;
    const auto batch = put(id, FrameType::put, frames * kFrame);
    batch->frame_bytes = kFrame;
    batch->shared = true;
  }
  static SentFrame next_staged(ChunkStaging& staging) {
    if (poll_until_staged(staging)) return staging.pop_staged();
    throw std::runtime_error("no chunk was staged within 10 s");
  }
  /// Waits until a chunk is staged. Returns false after 10 s.
  bool poll_until_staged() { return poll_until_staged(staging_); }
  static bool poll_until_staged(ChunkStaging& staging) {
    const auto limit = base::Deadline::in(10s);
    while (!staging.has_staged() && !limit.passed()) {
      (void)staging.poll();
      std::this_thread::yield();
    }
    return staging.has_staged();
  }
  void expect_bytes(const SentFrame& frame) const {
    ASSERT_NE(frame.buffer, nullptr) << frame.status.to_string();
    EXPECT_TRUE(frame.status.ok()) << frame.status.to_string();
    const Chunk& chunk = *frame.chunk;
    ASSERT_EQ(chunk.extents.size(), 1u);
    EXPECT_EQ(std::memcmp(frame.buffer->at(0), bytes_.data() + chunk.position, chunk.bytes), 0)
        << "at " << chunk.position;
  }

  const test::FakeCuda fake_ = test::FakeCuda::find();
  std::optional<cuda::DeviceBuffer> there_;
  std::vector<std::byte> bytes_;
  const std::shared_ptr<WireRegion> memory_ = std::make_shared<WireRegion>();  // also the batches'
  WireRegionTable published_{nullptr};
  ConnectionGroup group_{ConnectionGroupOptions{.published = &published_}};
  copy::StagingStreams streams_;
  ChunkStaging staging_{streams_, ~0U};
};

TEST_F(TcpChunkStagingOnDevice, StagesAllBytes_AFewChunksAheadOfTheSocket) {
  put(1);
  EXPECT_TRUE(staging_.empty());
  EXPECT_TRUE(staging_.submit(group_));
  EXPECT_FALSE(staging_.empty());
  EXPECT_FALSE(staging_.submit(group_)) << "no buffer is free";
  std::vector<std::uint64_t> positions;
  for (std::size_t i = 0; i < kChunks; ++i) {
    ASSERT_TRUE(poll_until_staged());
    const SentFrame frame = staging_.pop_staged();
    expect_bytes(frame);
    EXPECT_EQ(frame.chunk->last, i + 1 == kChunks);
    positions.push_back(frame.chunk->position);
    staging_.release(frame);
    group_.sent(*frame.chunk, {});
    EXPECT_EQ(staging_.submit(group_), i + kAhead < kChunks) << i;
  }
  EXPECT_TRUE(std::ranges::is_sorted(positions)) << "of one GPU in their order";
  EXPECT_TRUE(staging_.empty());
  EXPECT_TRUE(staging_.stop());
}

TEST_F(TcpChunkStagingOnDevice, LeavesHostMemory_ToTheSocket) {
  const auto host = std::make_shared<WireRegion>();
  auto batch = std::make_shared<Outgoing>();
  batch->id = 1;
  batch->use = RegionUse(host);
  batch->extents = {{reinterpret_cast<std::uint64_t>(bytes_.data()), 0, kBytes}};
  group_.put(batch);
  EXPECT_FALSE(staging_.submit(group_));
  EXPECT_TRUE(staging_.empty());
  put(2);
  EXPECT_TRUE(staging_.submit(group_)) << "though the other one is first";
  ASSERT_TRUE(poll_until_staged());
  EXPECT_TRUE(group_.next_chunk().has_value());
  const SentFrame frame = staging_.pop_staged();
  EXPECT_EQ(frame.chunk->of->id, 2u);
  staging_.release(frame);
}

/// A connection that is awake sooner would else take all of it.
TEST_F(TcpChunkStagingOnDevice, StagesOneChunkAtATime_OfABatchThatConnectionsShare) {
  ChunkStaging other(streams_, ~0U);
  put_shared(1, 3);
  EXPECT_TRUE(staging_.submit(group_));
  EXPECT_FALSE(staging_.submit(group_)) << "it has one";
  EXPECT_TRUE(other.submit(group_));
  const SentFrame first = next_staged(staging_), second = next_staged(other);
  EXPECT_TRUE(staging_.submit(group_)) << "the first one is at the socket";
  EXPECT_FALSE(other.submit(group_)) << "nothing is left";
  const SentFrame third = next_staged(staging_);
  EXPECT_EQ(first.chunk->position, 0u);
  EXPECT_EQ(second.chunk->position, first.chunk->bytes);
  EXPECT_EQ(third.chunk->position, first.chunk->bytes + second.chunk->bytes);
  EXPECT_TRUE(third.chunk->last);
  for (const SentFrame* frame : {&first, &third}) staging_.release(*frame);
  other.release(second);
}

TEST_F(TcpChunkStagingOnDevice, StagesASharedBatch_BesideALargeOne) {
  put(1);
  EXPECT_TRUE(staging_.submit(group_));
  put_shared(2, 1);
  std::vector<std::uint64_t> ids;
  for (std::size_t i = 0; i < kAhead + 2; ++i) {  // there is always a chunk of the large one
    const SentFrame frame = next_staged(staging_);
    ids.push_back(frame.chunk->of->id);
    staging_.release(frame);
    (void)staging_.submit(group_);
  }
  EXPECT_EQ(ids, (std::vector<std::uint64_t>{1, 1, 1, 1, 2}));
}

/// What a GPU still writes to may not be used again.
TEST_F(TcpChunkStagingOnDevice, StopsOnce_NoGpuCopiesForItAnyMore) {
  put(1);
  test::FakeCudaHold held(fake_, device->info().ordinal);
  EXPECT_TRUE(staging_.submit(group_));
  EXPECT_TRUE(staging_.is_copying());
  EXPECT_FALSE(staging_.has_staged());
  EXPECT_FALSE(staging_.poll());
  EXPECT_FALSE(staging_.stop());
  EXPECT_FALSE(staging_.empty());
  held.release();
  bool stopped = false;
  for (const auto limit = base::Deadline::in(10s); !stopped && !limit.passed();) {
    stopped = staging_.stop();
    std::this_thread::yield();
  }
  EXPECT_TRUE(stopped);
  EXPECT_TRUE(staging_.empty());
  EXPECT_FALSE(staging_.is_copying());
}

/// The peer has asked for it, and its owner may deregister it once the bytes are in our buffers.
TEST_F(TcpChunkStagingOnDevice, KeepsTheMemoryOfAnAnswer_UntilItIsStaged) {
  put(1, FrameType::data);
  EXPECT_EQ(memory_->uses, 1u);
  test::FakeCudaHold held(fake_, device->info().ordinal);
  EXPECT_TRUE(staging_.submit(group_));
  EXPECT_EQ(memory_->uses, 1 + kAhead);
  held.release();
  for (std::size_t i = 0; i < kAhead; ++i) {
    ASSERT_TRUE(poll_until_staged());
    const SentFrame frame = staging_.pop_staged();
    EXPECT_EQ(frame.chunk->use.memory(), nullptr);
    staging_.release(frame);
  }
  EXPECT_EQ(memory_->uses, 1u);
}

/// The peer awaits as many bytes as the heads announce.
TEST_F(TcpChunkStagingOnDevice, PassesChunksOnWithTheError_WhenTheGpuIsLost) {
  put(1, FrameType::data);
  fake_.lose(device->info().ordinal);
  EXPECT_TRUE(staging_.submit(group_));
  EXPECT_FALSE(staging_.is_copying());
  std::size_t chunks = 0;
  std::uint64_t bytes = 0;
  while (staging_.has_staged()) {
    const SentFrame frame = staging_.pop_staged();
    EXPECT_FALSE(frame.status.ok());
    EXPECT_EQ(frame.buffer, nullptr);
    EXPECT_EQ(frame.chunk->use.memory(), nullptr);
    bytes += frame.chunk->bytes;
    ++chunks;
    staging_.release(frame);
  }
  EXPECT_EQ(chunks, kChunks) << "they need no buffer";
  EXPECT_EQ(bytes, kBytes);
  EXPECT_TRUE(staging_.stop());
}

}  // namespace tcp_chunk_staging_test
}  // namespace linkspan::transport::tcp
