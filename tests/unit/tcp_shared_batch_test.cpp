// Batches that several connections carry together, and the notification behind them.
#include <poll.h>

#include "tests/unit/tcp_connection_group_fixture.hpp"
#include "transport/tcp/connection_group.hpp"

namespace linkspan::transport::tcp {
namespace {

constexpr std::uint64_t kLarge = 512u << 10;

class TcpSharedBatch : public TcpConnectionGroup {
 protected:
  explicit TcpSharedBatch(cuda::Topology* topology = nullptr)
      : TcpConnectionGroup({.topology = topology, .bytes = kLarge, .chunk = kMaxChunk}) {}

  std::shared_ptr<Outgoing> batch(std::vector<Extent> extents, const Bytes& notification = {}) {
    auto made = std::make_shared<Outgoing>();
    made->id = ++cookies_;
    made->use = transport_.published().use(key_.id.serial);
    made->extents = std::move(extents);
    made->notification = notification;
    return made;
  }
  Extent extent(std::uint64_t offset, std::uint64_t bytes) {
    return {reinterpret_cast<std::uintptr_t>(memory_.data()) + offset, offset, bytes};
  }
  void add_second_stream() {
    other_ = std::exchange(raw_, {});
    add_stream();
  }
  /// Returns the next frame of the connection that brings one first.
  std::optional<Heard> next_of_any() {
    std::array<pollfd, 2> both{{{raw_.get(), POLLIN, 0}, {other_.get(), POLLIN, 0}}};
    if (heard_.empty() && heard_by_other_.empty()) (void)::poll(both.data(), both.size(), 5000);
    if (!heard_by_other_.empty() || (heard_.empty() && both[1].revents != 0)) {
      std::swap(raw_, other_);
      std::swap(heard_, heard_by_other_);
    }
    return next();
  }
  static std::optional<Chunk> expect_chunk(ConnectionGroup& group, std::uint64_t position,
                                           std::uint64_t bytes, bool last) {
    auto chunk = group.next_chunk();
    EXPECT_TRUE(chunk.has_value());
    if (!chunk) return chunk;
    EXPECT_EQ(chunk->position, position);
    EXPECT_EQ(chunk->bytes, bytes);
    EXPECT_EQ(chunk->last, last);
    return chunk;
  }

  /// Asked for its chunks by the test, as by a connection.
  ConnectionGroup group_{{.published = &transport_.published(),
                          .channel = &channel_,
                          .incarnation = kUs,
                          .chunk = kMinChunk}};
  base::Fd other_;
  Bytes heard_by_other_;
};

class TcpSharedBatchOnDevice : public TcpSharedBatch {
 protected:
  static constexpr std::uint64_t kSeed = 5;

  TcpSharedBatchOnDevice() : TcpSharedBatch(test::topology()) {}
  void SetUp() override {
    if (topology_ == nullptr) GTEST_SKIP() << test::kNeedsGpu;
    (void)add_gpu_memory(kSeed);
    add_second_stream();
  }
  /// Checks that the next `frames` frames bring the whole memory, and ends the write. Returns each
  /// frame's bytes by its position.
  std::map<std::uint64_t, std::uint64_t> receive_all(int frames) {
    Bytes data(kLarge), sent(kLarge);
    std::map<std::uint64_t, std::uint64_t> sizes;
    for (int i = 0; i < frames; ++i) {
      const auto heard = next_of_any();
      if (!heard) break;
      const std::uint64_t at = heard->head.position;
      sizes[at] = heard->data.size();
      std::ranges::copy(heard->data, data.begin() + static_cast<std::ptrdiff_t>(at));
    }
    test::put_pattern(sent, kSeed, test::Buffer::kGuard);
    EXPECT_EQ(data, sent);
    send({.type = FrameType::ended, .id = cookies_});
    EXPECT_EQ(end().to_string(), "ok");
    return sizes;
  }
};

TEST_F(TcpSharedBatchOnDevice, GoesInAsManyFramesAsThereAreConnections) {
  constexpr std::uint64_t kFirst = kLarge / 2 + 4096;
  must(post_from_gpu());
  EXPECT_EQ(receive_all(2),
            (std::map<std::uint64_t, std::uint64_t>{{0, kFirst}, {kFirst, kLarge - kFirst}}));
}

/// A notification would follow in a frame, and a copy, of its own.
TEST_F(TcpSharedBatchOnDevice, WithANotificationGoesInOneFrame) {
  must(post_from_gpu(ones(3)));
  EXPECT_EQ(receive_all(1), (std::map<std::uint64_t, std::uint64_t>{{0, kLarge}}));
}

TEST_F(TcpSharedBatch, GoesInAsManyFramesAsThereAreConnections) {
  add_second_stream();
  must(post(linkspan::Op::write, 0, kLarge, ones(3)));
  EXPECT_TRUE(notifies_);
  std::map<std::uint64_t, std::uint64_t> data;  // bytes by position
  for (int frames = 0; frames < 3; ++frames) {
    const auto heard = next_of_any();
    ASSERT_TRUE(heard.has_value());
    const std::uint64_t at = heard->head.position;
    EXPECT_TRUE(
        std::ranges::equal(heard->data, std::span(memory_).subspan(at, heard->data.size())));
    EXPECT_EQ(heard->head.last, frames == 2);
    EXPECT_EQ(heard->head.notification, frames == 2 ? ones(3) : Bytes());
    data[at] = heard->data.size();
  }
  ASSERT_EQ(data.size(), 3u);
  EXPECT_EQ(data[0] + data[data[0]] + data.rbegin()->second, kLarge);
  EXPECT_LE(data[0], kLarge / 2 + 4096) << "both have about a half";
  send({.type = FrameType::ended, .id = cookies_});
  EXPECT_EQ(end().to_string(), "ok");
}

TEST_F(TcpSharedBatch, IsFollowedByItsNotificationOnceAllOfItIsRead) {
  group_.put(batch({extent(0, 3 * kMinChunk + 100)}, ones(3)));
  const auto first = expect_chunk(group_, 0, kMinChunk, false),
             second = expect_chunk(group_, kMinChunk, kMinChunk, false);
  ASSERT_TRUE(first && second);
  const auto third = expect_chunk(group_, 2 * kMinChunk, 100, false);
  ASSERT_TRUE(third.has_value());
  for (const auto* read : {&third, &first, &second}) {
    EXPECT_FALSE(group_.next_chunk().has_value()) << "some is being read";
    group_.sent(**read, {});
  }
  const auto end = expect_chunk(group_, 2 * kMinChunk + 100, kMinChunk, true);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->head.notification, ones(3));
  group_.sent(*end, {});
  EXPECT_FALSE(group_.next_chunk().has_value());
}

TEST_F(TcpSharedBatch, HasNoNotificationIfSomeOfItCouldNotBeRead) {
  group_.put(batch({extent(0, 3 * kMinChunk)}, ones(3)));
  const auto first = expect_chunk(group_, 0, kMinChunk, false),
             second = expect_chunk(group_, kMinChunk, kMinChunk, false);
  ASSERT_TRUE(first && second);
  group_.sent(*first, Status(Code::unreachable, Scope::request, "freed"));
  group_.sent(*second, {});
  const auto end = expect_chunk(group_, 2 * kMinChunk, kMinChunk, true);
  ASSERT_TRUE(end.has_value());
  EXPECT_TRUE(end->head.notification.empty());
}

TEST_F(TcpSharedBatch, DoesNotHoldUpOthersWhileItIsRead) {
  group_.put(batch({extent(0, 2 * kMinChunk)}, ones(3)));
  const auto first = expect_chunk(group_, 0, kMinChunk, false);
  ASSERT_TRUE(first.has_value());
  EXPECT_FALSE(group_.next_chunk().has_value());
  group_.put(batch({extent(0, 100)}, ones(4)));
  const auto other = expect_chunk(group_, 0, 100, true);
  ASSERT_TRUE(other.has_value());
  EXPECT_EQ(other->head.notification, ones(4));
}

/// The tail is shorter than a word that follows the part before it.
TEST_F(TcpSharedBatch, DoesNotCutAWordOfEightBytes) {
  group_.put(batch({extent(0, 8), extent(16, 8), extent(32, kMinChunk)}, ones(3)));
  const auto first = expect_chunk(group_, 0, 16, false);
  ASSERT_TRUE(first.has_value());
  ASSERT_EQ(first->extents.size(), 2u);
  group_.sent(*first, {});
  const auto end = expect_chunk(group_, 16, kMinChunk, true);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->head.notification, ones(3));
}

/// The answer to a put is one, although its last frame may be counted behind the data of others.
TEST_F(TcpSharedBatch, IsAnsweredOnce) {
  Head first = put(1, 0, 100, false);
  first.data = 100;
  const auto of_data = group_.resolve_destination(first);
  Head last = put(1, 0, 0);
  last.spans.clear();
  last.position = 100;
  const auto of_last = group_.resolve_destination(last);
  ASSERT_TRUE(of_data.ok() && of_last.ok());
  EXPECT_TRUE(group_.data_landed(*of_data->of, 100, {}).has_value());
  EXPECT_FALSE(group_.data_landed(*of_last->of, 0, {}).has_value());
}

/// The word may be what a peer's program polls.
TEST_F(TcpSharedBatch, WithAWordGoesInOneFrame) {
  add_second_stream();
  const std::array<Block, 2> blocks{{{0, 0, kLarge - 64}, {kLarge - 8, kLarge - 8, 8}}};
  must(post(linkspan::Op::write, blocks));
  const auto heard = next_of_any();
  ASSERT_TRUE(heard.has_value());
  EXPECT_EQ(heard->data.size(), kLarge - 64 + 8);
  EXPECT_TRUE(heard->head.last);
  send({.type = FrameType::ended, .id = cookies_});
  EXPECT_EQ(end().to_string(), "ok");
}

}  // namespace
}  // namespace linkspan::transport::tcp
