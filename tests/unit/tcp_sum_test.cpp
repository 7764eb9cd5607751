// Tests frames with a checksum: a change on the way is reported, and nothing else ends with it.
#include "base/crc32c.hpp"
#include "tests/support/kinds.hpp"
#include "tests/unit/tcp_connection_group_fixture.hpp"

namespace linkspan::transport::tcp {
namespace tcp_sum_test {

constexpr std::size_t kPutHead = base::kFrameHeaderBytes + 48, kPlaceOfSum = kPutHead - 4;

Bytes counting(std::size_t count, std::size_t from = 0) {
  Bytes out(count);
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<std::byte>((from + i) * 13 + 1);
  return out;
}

class TcpSums : public TcpConnectionGroup {
 protected:
  explicit TcpSums(cuda::Topology* topology = nullptr)
      : TcpConnectionGroup({.topology = topology}) {
    wishes_.checksum = true;
  }

  Head summed_put(std::uint64_t id, std::vector<Span> spans) {
    Head head = put(id, 0, 0);
    head.summed = true;
    head.spans = std::move(spans);
    return head;
  }
  Head summed_get(std::uint64_t id, std::vector<Span> spans) {
    return {.type = FrameType::get,
            .id = id,
            .serial = key_.id.serial,
            .token = key_.token,
            .summed = true,
            .spans = std::move(spans)};
  }
  static Head summed_data(std::uint64_t id, std::uint64_t position = 0, bool last = true) {
    return {.type = FrameType::data, .id = id, .position = position, .last = last, .summed = true};
  }
  void send_flipped(const Head& head, const Bytes& data, std::size_t at) {
    Bytes frame = frame_of(head, data);
    frame[at] ^= std::byte{0x10};
    send_bytes(frame);
  }
  /// Checks that the frame has a correct checksum.
  static void expect_sum(const Heard& heard) {
    EXPECT_TRUE(heard.head.summed);
    EXPECT_EQ(base::crc32c(heard.data, heard.head.sum_of_head), heard.head.sum);
  }
  void expect_corrupt(std::uint64_t id) {
    const auto heard = next();
    ASSERT_TRUE(heard.has_value());
    EXPECT_EQ(heard->head.id, id);
    EXPECT_EQ(heard->head.code, Code::corrupt);
    expect_told(heard->head.text, "a write came by TCP");
  }
  static void expect_told(const std::string& text, const std::string& which) {
    for (const std::string& word : {which, std::string("CRC32C"), std::string("not to be used")})
      EXPECT_NE(text.find(word), std::string::npos) << word << " in " << text;
  }
  Bytes part(std::size_t from, std::size_t count) const {
    return {memory_.begin() + static_cast<std::ptrdiff_t>(from),
            memory_.begin() + static_cast<std::ptrdiff_t>(from + count)};
  }
};

TEST_F(TcpSums, OfAWriteThatCameAsItWasSentLetItEndWell) {
  const Bytes data = counting(30);
  send(summed_put(1, {{3, 5}, {64, 8}, {200, 17}}), data);
  expect_end(1, Code::ok);
  EXPECT_EQ(part(3, 5), Bytes(data.begin(), data.begin() + 5));
  EXPECT_EQ(part(64, 8), Bytes(data.begin() + 5, data.begin() + 13));
  EXPECT_EQ(part(200, 17), Bytes(data.begin() + 13, data.end()));
}

/// Changes the place, the checksum, data, an 8-byte value, and data after it.
TEST_F(TcpSums, OfAWriteTellWhatWasChanged) {
  const std::size_t heads = kPutHead + 3 * sizeof(Span);
  std::uint64_t id = 0;
  for (const std::size_t at : {kPutHead, kPlaceOfSum, heads, heads + 6, heads + 29}) {
    Head head = summed_put(++id, {{4096, 5}, {64, 8}, {200, 17}});
    head.notification = {};
    send_flipped(head, counting(30), at);
    expect_corrupt(id);
    send(summed_put(++id, {{1000, 9}}), counting(9));
    expect_end(id, Code::ok);
  }
  EXPECT_EQ(part(1000, 9), counting(9));
}

/// Neither an 8-byte value nor a notification announces wrong data.
TEST_F(TcpSums, KeepAWordThatWouldTellOfWrongData) {
  std::fill_n(memory_.begin() + 64, 8, std::byte{9});
  Head head = summed_put(1, {{0, 40}, {64, 8}});
  head.notification = counting(3);
  send_flipped(head, counting(48), kPutHead + 2 * sizeof(Span) + head.notification.size());
  expect_corrupt(1);
  EXPECT_EQ(part(64, 8), Bytes(8, std::byte{9}));
  EXPECT_TRUE(channel_.notifications().empty());
  send(head, counting(48));
  expect_end(1, Code::ok);
  EXPECT_EQ(part(64, 8), counting(8, 40));
  EXPECT_EQ(channel_.notifications(), std::vector<Bytes>{counting(3)});
}

/// One of several frames differs.
TEST_F(TcpSums, OfOneFrameTellOfAllOfItsBatch) {
  for (const bool first : {true, false}) {
    Head a = summed_put(5, {{0, 100}}), b = summed_put(5, {{100, 50}});
    a.last = false;
    b.position = 100;
    send_flipped(a, counting(100), first ? kPutHead + 40 : kPlaceOfSum + 1);
    send(b, counting(50));
    expect_corrupt(5);
  }
  Head none = summed_put(6, {});  // of one that was canceled
  send_flipped(none, {}, kPlaceOfSum);
  expect_corrupt(6);
}

TEST_F(TcpSums, AreMadeOfWhatIsWritten) {
  must(post(linkspan::Op::write, 10, 6000));
  std::uint64_t id = 0;
  for (bool last = false; !last;) {
    const auto heard = next();
    ASSERT_TRUE(heard.has_value());
    expect_sum(*heard);
    EXPECT_EQ(heard->data, part(10 + heard->head.position, heard->data.size()));
    last = heard->head.last;
    id = heard->head.id;
  }
  send({.type = FrameType::ended,
        .id = id,
        .code = Code::corrupt,
        .text = wrong_sum(FrameType::put).what()});
  EXPECT_EQ(end().code(), Code::corrupt);
  expect_told(end().what(), "by the peer: a write");

  wishes_ = {};
  must(post(linkspan::Op::write, 10, 8));
  const auto heard = next();
  ASSERT_TRUE(heard.has_value());
  EXPECT_FALSE(heard->head.summed);
  send({.type = FrameType::ended, .id = heard->head.id});
  EXPECT_EQ(end().to_string(), "ok");
}

TEST_F(TcpSums, AreMadeOfWhatIsRead) {
  send(summed_get(6, {{1, 3000}, {4000, 3000}}));
  for (bool last = false; !last;) {
    const auto heard = next();
    ASSERT_TRUE(heard.has_value());
    expect_sum(*heard);
    EXPECT_EQ(heard->head.code, Code::ok);
    last = heard->head.last;
  }
  // A request that asks for other bytes than it was sent for.
  send_flipped(summed_get(7, {{64, 100}}), {}, base::kFrameHeaderBytes + 40);
  auto heard = next();
  ASSERT_TRUE(heard.has_value());
  EXPECT_EQ(heard->head.code, Code::corrupt);
  EXPECT_TRUE(heard->data.empty());
  expect_sum(*heard);
  send(summed_get(8, {{64, 100}}));
  heard = next();
  ASSERT_TRUE(heard.has_value());
  EXPECT_EQ(heard->data, part(64, 100));
}

TEST_F(TcpSums, OfAReadTellWhatWasChanged) {
  const std::size_t head = base::kFrameHeaderBytes + 24;
  std::uint64_t id = 0;
  for (const std::size_t at : {head - 8, head, head + 99}) {
    must(post(linkspan::Op::read, 64, 100));
    const auto asked = next();
    ASSERT_TRUE(asked.has_value());
    EXPECT_TRUE(asked->head.summed);
    EXPECT_EQ(asked->head.sum, asked->head.sum_of_head);
    id = asked->head.id;
    send(summed_data(id, 50), counting(50));
    send_flipped(summed_data(id, 0, false), counting(50), std::min(at, head + 49));
    EXPECT_EQ(end().code(), Code::corrupt);
    expect_told(end().what(), "a read came by TCP");
  }
  must(post(linkspan::Op::read, 64, 8));  // a word
  ASSERT_TRUE(next().has_value());
  const Bytes before = part(64, 8);
  send_flipped(summed_data(id + 1), counting(8), head + 7);
  EXPECT_EQ(end().code(), Code::corrupt);
  EXPECT_EQ(part(64, 8), before);

  must(post(linkspan::Op::read, 64, 100));
  ASSERT_TRUE(next().has_value());
  send(
      {.type = FrameType::data, .id = id + 2, .last = true, .summed = true, .code = Code::corrupt});
  EXPECT_EQ(end().code(), Code::corrupt);
  EXPECT_NE(end().what().find("nothing was read"), std::string::npos) << end().to_string();

  must(post(linkspan::Op::read, 64, 100));
  ASSERT_TRUE(next().has_value());
  send(summed_data(id + 3), counting(100));
  EXPECT_EQ(end().to_string(), "ok");
  EXPECT_EQ(part(64, 100), counting(100));
}

TEST_F(TcpSums, ThatWereAskedForAreNotLeftOut) {
  must(post(linkspan::Op::read, 0, 16));
  ASSERT_TRUE(next().has_value());
  send({.type = FrameType::data, .id = 1, .last = true}, ones(16));
  EXPECT_FALSE(next().has_value());
  endpoint_->progress(ends_);
  EXPECT_EQ(end().code(), Code::corrupt);
}

/// Through pinned slots.
class TcpSumsOnDevice : public TcpSums {
 protected:
  static constexpr std::uint64_t kSeed = 5;

  TcpSumsOnDevice() : TcpSums(test::topology()) {}
  void SetUp() override {
    if (topology_ == nullptr) GTEST_SKIP() << test::kNeedsGpu;
    key_ = add_gpu_memory(kSeed);
  }
};

TEST_F(TcpSumsOnDevice, KeepWrongDataOutOfIt) {
  const Bytes data = counting(3000);
  for (const std::size_t at : {0u, 1500u, 2999u}) {
    send_flipped(summed_put(1, {{5, 1000}, {4000, 2000}}), data, kPutHead + 2 * sizeof(Span) + at);
    expect_corrupt(1);
    EXPECT_EQ(gpu_->difference(kSeed, {}), "");
  }
  send(summed_put(1, {{5, 1000}, {4000, 2000}}), data);
  expect_end(1, Code::ok);
  send(summed_get(2, {{5, 1000}, {4000, 2000}}));
  const auto heard = next();
  ASSERT_TRUE(heard.has_value());
  expect_sum(*heard);
  EXPECT_EQ(heard->data, data);
}

/// More blocks than a slot takes.
TEST_F(TcpSumsOnDevice, GoOnFromSlotToSlot) {
  constexpr std::uint64_t kBlocks = 600;
  std::vector<Block> blocks;
  for (std::uint64_t i = 0; i < kBlocks; ++i) blocks.push_back({i * 11, i * 11, 8});
  const Bytes data = counting(kBlocks * 8);
  for (const std::size_t at : {std::size_t{0}, data.size() / 2, data.size() - 1, data.size()}) {
    must(endpoint_
             ->post({.op = linkspan::Op::read,
                     .local = &on_gpu_->region(),
                     .remote = remote_.get(),
                     .shape = std::span<const Block>(blocks),
                     .hints = wishes_,
                     .cookie = ++cookies_})
             .status());
    ASSERT_TRUE(next().has_value());
    if (at != data.size())
      send_flipped(summed_data(cookies_), data, base::kFrameHeaderBytes + 24 + at);
    else
      send(summed_data(cookies_), data);
    EXPECT_EQ(end().code(), at == data.size() ? Code::ok : Code::corrupt) << end().to_string();
  }
}

}  // namespace tcp_sum_test
}  // namespace linkspan::transport::tcp
