// Tests frames of a peer that keeps the rules of a connection, and of one that breaks them.
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "tests/support/kinds.hpp"
#include "tests/support/no_memory.hpp"
#include "tests/unit/tcp_connection_group_fixture.hpp"

namespace linkspan::transport::tcp {
namespace tcp_connection_group_test {

TEST_F(TcpConnectionGroup, TakesPutsOfSeveralFramesAndAnswersGets) {
  Bytes expected = memory_;
  std::fill_n(expected.begin() + 3, 5, std::byte{1});
  std::fill_n(expected.begin() + 100, 7, std::byte{1});
  send(put(5, 3, 5, false), ones(5));
  Head second = put(5, 100, 7);
  second.position = 5;
  send(second, ones(7));
  expect_end(5, Code::ok);
  EXPECT_EQ(memory_, expected);

  send({.type = FrameType::get,
        .id = 6,
        .serial = key_.id.serial,
        .token = key_.token,
        .spans = {{1, 9}, {kBytes - 2, 2}}});
  const auto heard = next();
  ASSERT_TRUE(heard.has_value());
  EXPECT_EQ(heard->head.type, FrameType::data);
  EXPECT_TRUE(heard->head.last);
  Bytes due(memory_.begin() + 1, memory_.begin() + 10);
  due.insert(due.end(), memory_.end() - 2, memory_.end());
  EXPECT_EQ(heard->data, due);
}

/// Each part of the frame arrives separately.
TEST_F(TcpConnectionGroup, StoresAWordWhole) {
  constexpr std::uint64_t kAt = 64;
  constexpr std::uint64_t kOld = 0x0101010101010101, kNew = 0xA1A2A3A4A5A6A7A8;
  std::atomic_ref word(*reinterpret_cast<std::uint64_t*>(memory_.data() + kAt));
  word = kOld;
  std::jthread watching([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      const std::uint64_t seen = word.load(std::memory_order_acquire);
      ASSERT_TRUE(seen == kOld || seen == kNew) << std::hex << seen;
    }
  });
  // Data, the 8-byte value, and data after it.
  Head head = put(5, 3, 5);
  head.spans = {{3, 5}, {kAt, 8}, {200, 6}};
  head.incarnation = kPeer;
  head.data = 19;
  Bytes frame = encode(head);
  const std::size_t data = frame.size();
  frame.resize(data + head.data, std::byte{1});
  std::memcpy(frame.data() + data + 5, &kNew, 8);
  for (std::size_t from = 0, to = 0; to != frame.size(); from = to) {
    to = from < data + 5 ? data + 6 : from + 1;
    send_bytes(Bytes(frame.begin() + static_cast<std::ptrdiff_t>(from),
                     frame.begin() + static_cast<std::ptrdiff_t>(to)));
    const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
    int waits = 1;
    while (waits != 0 && !limit.passed()) {
      ASSERT_EQ(::ioctl(received_by_, FIONREAD, &waits), 0);
      if (waits != 0) std::this_thread::yield();
    }
    ASSERT_EQ(waits, 0) << "the data connection's thread takes nothing";
    if (to != frame.size()) {
      EXPECT_EQ(word.load(), kOld) << "behind " << to - data << " bytes of data";
    }
  }
  expect_end(5, Code::ok);
  EXPECT_EQ(word.load(), kNew);
  EXPECT_EQ(Bytes(memory_.begin() + 3, memory_.begin() + 8), ones(5));
  EXPECT_EQ(Bytes(memory_.begin() + 200, memory_.begin() + 206), ones(6));
}

/// Frames have at most 4096 bytes, so the 8-byte value does not fit after the data before it.
TEST_F(TcpConnectionGroup, SendsAWordInOneFrame) {
  const std::array<Block, 2> blocks{{{1, 1, kMinChunk - 4}, {5000, 5000, 8}}};
  must(post(linkspan::Op::write, blocks));
  for (const Block& block : blocks) {
    const auto heard = next();
    ASSERT_TRUE(heard.has_value());
    ASSERT_EQ(heard->head.spans.size(), 1u);
    EXPECT_EQ(heard->head.spans[0].offset, block.remote_offset);
    EXPECT_EQ(heard->head.spans[0].bytes, block.bytes);
  }
  send({.type = FrameType::ended, .id = cookies_});
  EXPECT_EQ(end().to_string(), "ok");
}

TEST_F(TcpConnectionGroup, RefusesWhatIsNotPermittedAndGoesOn) {
  const Bytes before = memory_;
  Head wrong_token = put(1, 0, 10);
  wrong_token.token[3] ^= std::byte{1};
  Head no_region = put(2, 0, 10);
  no_region.serial += 1000;
  Head beyond = put(3, kBytes - 5, 6), overflow = put(4, ~std::uint64_t{0} - 2, 10);
  Head fixed = put(5, 0, 10);
  fixed.serial = fixed_key_.id.serial;
  fixed.token = fixed_key_.token;
  const std::pair<Head, Code> refused[] = {{wrong_token, Code::unreachable},
                                           {no_region, Code::unreachable},
                                           {beyond, Code::invalid_argument},
                                           {overflow, Code::invalid_argument},
                                           {fixed, Code::permission_denied}};
  for (const auto& [head, code] : refused) {
    send(head, ones(head.spans[0].bytes));
    expect_end(head.id, code);
    Head get = head;
    get.type = FrameType::get;
    get.last = false;
    send(get);
    const auto heard = next();
    ASSERT_TRUE(heard.has_value());
    EXPECT_EQ(heard->head.type, FrameType::data);
    EXPECT_EQ(heard->head.code, code);
    EXPECT_TRUE(heard->head.last && heard->data.empty());
  }
  EXPECT_EQ(memory_, before);
  EXPECT_EQ(fixed_memory_, Bytes(kBytes, std::byte{9}));
  send(put(9, 0, 1), ones(1));
  expect_end(9, Code::ok);
}

TEST_F(TcpConnectionGroup, TellsOfWhatHasLandedBeforeItsEnd) {
  const Bytes told = ones(3);
  Head first = put(5, 0, 8, false), last = put(5, 100, 8);
  last.position = 8;
  last.notification = told;
  send(last, ones(8));
  Head refused = put(6, kBytes - 5, 6);
  refused.notification = told;
  send(refused, ones(6));
  expect_end(6, Code::invalid_argument);
  EXPECT_TRUE(channel_.notifications().empty());
  send(first, ones(8));
  expect_end(5, Code::ok);
  EXPECT_EQ(channel_.notifications(), std::vector<Bytes>{told});
}

TEST_F(TcpConnectionGroup, TakesANotificationAlongWithABatchOfOneFrame) {
  const Bytes small = ones(kMaxNotification), large = ones(kMaxNotification + 1);
  const std::tuple<linkspan::Op, std::uint64_t, Bytes, bool> posted[] = {
      {linkspan::Op::write, kMinChunk, small, true},
      {linkspan::Op::write, kMinChunk, large, false},
      {linkspan::Op::write, kMinChunk, {}, false},
      {linkspan::Op::read, 8, small, false}};
  for (const auto& [op, bytes, notification, rides] : posted) {
    must(post(op, 0, bytes, notification));
    EXPECT_EQ(notifies_, rides) << bytes;
    auto heard = next();
    ASSERT_TRUE(heard.has_value());
    EXPECT_EQ(heard->head.notification, rides ? notification : Bytes());
    if (!heard->head.last && op == linkspan::Op::write) heard = next();
    ASSERT_TRUE(heard.has_value());
    EXPECT_TRUE(heard->head.notification.empty() || rides);
    if (op == linkspan::Op::write) send({.type = FrameType::ended, .id = cookies_});
    if (op == linkspan::Op::read)
      send({.type = FrameType::data, .id = cookies_, .last = true}, ones(8));
    EXPECT_EQ(end().code(), Code::ok) << end().to_string();
  }
  EXPECT_TRUE(channel_.notifications().empty());
}

/// The other connection is the control connection: the put may be the first to come.
TEST_F(TcpConnectionGroup, SaysBehindWhichOthersANotificationIsHeard) {
  notifications_before_ = 3;
  must(post(linkspan::Op::write, 0, 8, ones(5)));
  EXPECT_FALSE(notifies_) << "this peer's release does not know the order";
  auto heard = next();
  ASSERT_TRUE(heard.has_value());
  EXPECT_EQ(heard->head.after, 0u);
  send({.type = FrameType::ended, .id = cookies_});
  EXPECT_EQ(end().code(), Code::ok);
  Head told = put(1, 0, 8);
  told.notification = ones(2);
  told.after = 7;
  send(told, ones(8));
  expect_end(1, Code::ok);
  EXPECT_EQ(channel_.afters(), std::vector<std::uint64_t>{7});
}

class TcpConnectionGroupOfThisRelease : public TcpConnectionGroup {
 protected:
  TcpConnectionGroupOfThisRelease() : TcpConnectionGroup({.ordered = true}) {}
};

TEST_F(TcpConnectionGroupOfThisRelease, SaysBehindWhichOthersANotificationIsHeard) {
  for (const std::uint64_t before : {0UL, 3UL}) {
    notifications_before_ = before;
    must(post(linkspan::Op::write, 0, 8, ones(5)));
    EXPECT_TRUE(notifies_);
    const auto heard = next();
    ASSERT_TRUE(heard.has_value());
    EXPECT_EQ(heard->head.notification, ones(5));
    EXPECT_EQ(heard->head.after, before);
    send({.type = FrameType::ended, .id = cookies_});
    EXPECT_EQ(end().code(), Code::ok);
  }
}

TEST(TcpFrame, ComesBackAsItWas) {
  const Head put{.type = FrameType::put,
                 .id = 3,
                 .incarnation = 4,
                 .serial = 5,
                 .token = {std::byte{6}},
                 .position = 7,
                 .last = true,
                 .spans = {{8, 9}, {10, 11}},
                 .notification = ones(5),
                 .data = 20};
  const Head end{
      .type = FrameType::ended, .id = 3, .incarnation = 4, .code = Code::corrupt, .text = "why"};
  Head summed = put;
  summed.summed = true;
  const Head get{.type = FrameType::get, .id = 3, .serial = 5, .summed = true, .spans = {{8, 9}}};
  const Head data{
      .type = FrameType::data, .id = 3, .position = 7, .last = true, .summed = true, .data = 2};
  Head ordered = summed;
  ordered.after = 12;
  for (const Head& head : {put, end, summed, get, data, ordered}) {
    const Bytes bytes = encode(head);
    for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
      const auto size = take(head_bytes(std::span(bytes).first(cut)));
      EXPECT_TRUE(!size || *size == bytes.size()) << cut;
    }
    EXPECT_EQ(take(head_bytes(bytes)), bytes.size());
    const Head back = take(decode(bytes));
    EXPECT_EQ(encode(back), bytes);
    EXPECT_EQ(back.summed, head.summed);
    EXPECT_EQ(back.sum, back.sum_of_head);
    EXPECT_EQ(back.after, head.after);
  }
}

TEST(TcpFrame, IsNoneWhereATransferEndsWithWhatIsNoEnd) {
  for (const Code code : {Code::no_resource, Code::pending})
    for (const Head& head :
         {Head{.type = FrameType::ended, .id = 3, .incarnation = 4, .code = code},
          Head{.type = FrameType::data, .id = 3, .last = true, .code = code}})
      EXPECT_EQ(decode(encode(head)).status().code(), Code::corrupt) << name_of(code);
}

TEST(TcpFrame, IsNoneWhereItsLengthsDisagree) {
  const Head good{.type = FrameType::put, .id = 3, .incarnation = 4, .spans = {{8, 9}}, .data = 9};
  const auto broken = [&](std::size_t at, std::uint8_t value) {
    Bytes bytes = encode(good);
    bytes[at] = std::byte{value};
    const auto size = head_bytes(bytes);
    return !size.ok() ||
           (*size && (bytes.size() < **size || !decode(std::span(bytes).first(**size)).ok()));
  };
  EXPECT_TRUE(broken(0, 8)) << "shorter than its fields";
  EXPECT_TRUE(broken(0, 72)) << "fewer bytes than its span";
  EXPECT_TRUE(broken(0, 78)) << "more bytes than its span";
  EXPECT_TRUE(broken(3, 1)) << "beyond the largest";
  EXPECT_TRUE(broken(4, 0)) << "version 0";
  EXPECT_TRUE(broken(6, 99)) << "an op that is none";
  EXPECT_TRUE(broken(24 + 32, 255)) << "more spans than there is room for";
  EXPECT_TRUE(broken(24 + 36, 4)) << "an order without a notification";
  EXPECT_TRUE(broken(24 + 36, 8)) << "a flag that is unknown";
  EXPECT_TRUE(broken(24 + 44, 1)) << "a sum of a frame without one";
  for (std::uint8_t flags = 1; flags < 4; ++flags) EXPECT_FALSE(broken(24 + 36, flags));
  EXPECT_TRUE(broken(24 + 40, 1)) << "a notification before the last frame";
  EXPECT_TRUE(broken(24 + 41, 0xff)) << "a notification that is too long";
}

/// The region is busy from the first frame on, so a writer that keeps the rules never causes the
/// failures tested below.
TEST_F(TcpConnectionGroup, APutOfSeveralFramesHoldsItsRegionFromTheFirstOn) {
  send(put(1, 0, 8, false), ones(8));
  send(put(2, 100, 1), ones(1));
  expect_end(2, Code::ok);  // so the first frame has come
  EXPECT_EQ(transport_.retract(region_->region(), false).code(), Code::busy);
  send(put(3, 16, 8), ones(8));
  expect_end(3, Code::unreachable);
  Head last = put(1, 8, 8);
  last.position = 8;
  send(last, ones(8));
  expect_end(1, Code::ok);
  EXPECT_TRUE(std::equal(memory_.begin(), memory_.begin() + 16, ones(16).begin()));
  const auto limit = base::Deadline::after(base::Clock::steady(), 5s);
  Status retracted = transport_.retract(region_->region(), false);
  while (retracted.code() == Code::busy && !limit.passed())
    retracted = transport_.retract(region_->region(), false);
  EXPECT_EQ(retracted.to_string(), "ok");
}

/// The control connection may still have something to send.
TEST_F(TcpConnectionGroup, TakesNoMoreConnectionsThanThereMayBe) {
  std::vector<base::Fd> others;
  for (unsigned i = 1; i < kMaxDataConnections; ++i) {
    others.push_back(std::move(raw_));
    add_stream();
  }
  auto [here, there] = test::tcp_pair();
  EXPECT_EQ(endpoint_->on_data_connection(base::AuthenticatedSocket{std::move(here), keys_}).code(),
            Code::corrupt);
}

TEST_F(TcpConnectionGroup, GivesThePeerUpASecondAfterItsConnectionsHaveEnded) {
  send_bytes(ones(64));
  while (next()) continue;
  endpoint_->progress(ends_);
  EXPECT_EQ(channel_.given_up.to_string(), "ok");
  const base::Time ended = base::Clock::steady().now();
  EXPECT_EQ(endpoint_->poll_hint().when, PollHint::When::at);
  const auto limit = base::Deadline::after(base::Clock::steady(), 5s);
  while (channel_.given_up.ok() && !limit.passed()) endpoint_->progress(ends_);
  EXPECT_EQ(channel_.given_up.code(), Code::corrupt);
  EXPECT_GT(base::Clock::steady().now() - ended, 500ms);
  EXPECT_EQ(endpoint_->poll_hint().when, PollHint::When::idle) << "once";
}

/// Each to a wire of its own.
class TcpWireBroken : public TcpConnectionGroup, public ::testing::WithParamInterface<int> {};

TEST_P(TcpWireBroken, EndsAndTouchesNothingMore) {
  const Bytes before = memory_;
  const Head get{.type = FrameType::get,
                 .id = 1,
                 .serial = key_.id.serial,
                 .token = key_.token,
                 .spans = {{0, 8}}};
  switch (GetParam()) {
    case 0: {
      Head stranger = get;
      stranger.incarnation = kPeer + 1;
      send(stranger);
      break;
    }
    case 1:
      send({.type = FrameType::data, .id = 4, .last = true}, ones(8));
      break;
    case 2:
      send({.type = FrameType::ended, .id = 4});
      break;
    case 3: {  // a last frame, and then more
      Head last = put(4, 0, 8);
      last.position = 8;
      send(last, Bytes(before.begin(), before.begin() + 8));
      send(last, Bytes(before.begin(), before.begin() + 8));
      break;
    }
    case 4: {  // more bytes than the last frame announced
      Head last = put(4, 0, 8);
      last.position = 8;
      send(last, Bytes(before.begin(), before.begin() + 8));
      send(put(4, 0, 16, false), Bytes(before.begin(), before.begin() + 16));
      break;
    }
    case 5:
      for (std::uint64_t id = 1; id <= 65; ++id)
        send(put(id, 0, 1, false), Bytes(before.begin(), before.begin() + 1));
      break;
    case 6: {
      Bytes no_span = encode(put(1, 0, 8));
      no_span[0] = std::byte{255};  // of its length
      send_bytes(no_span);
      send_bytes(ones(400));
      break;
    }
    case 7: {  // a put of ours that has ended before it was sent
      must(post(linkspan::Op::write, 0, kBytes));
      send({.type = FrameType::ended, .id = 1});
      send({.type = FrameType::ended, .id = 1});
      break;
    }
    case 8: {  // a later frame of another region
      send(put(4, 0, 8, false), Bytes(before.begin(), before.begin() + 8));
      Head other = put(4, 0, 8);
      other.serial = fixed_key_.id.serial;
      other.token = fixed_key_.token;
      other.position = 8;
      send(other, ones(8));
      break;
    }
    case 9:
      send_bytes(ones(64));
      break;
    case 10: {  // a later frame that leaves the region
      send(put(4, 0, 8, false), Bytes(before.begin(), before.begin() + 8));
      Head beyond = put(4, kBytes - 4, 8);
      beyond.position = 8;
      send(beyond, ones(8));
      break;
    }
    default: {  // a get of ours: data beyond what was asked for
      must(post(linkspan::Op::read, 0, 16));
      ASSERT_TRUE(next().has_value());
      send({.type = FrameType::data, .id = 1, .position = 8, .last = true}, ones(16));
      break;
    }
  }
  while (next()) continue;
  endpoint_->progress(ends_);
  EXPECT_EQ(post(linkspan::Op::write, 0, 8).code(), Code::corrupt);
  EXPECT_EQ(memory_, before);
  EXPECT_EQ(fixed_memory_, Bytes(kBytes, std::byte{9}));
}

INSTANTIATE_TEST_SUITE_P(Each, TcpWireBroken, ::testing::Range(0, 12));

TEST_F(TcpConnectionGroup, TellsWhatTheOtherSideAnswers) {
  must(post(linkspan::Op::write, 10, 6000));  // of two frames
  std::uint64_t bytes = 0;
  std::uint64_t id = 0;
  for (bool last = false; !last;) {
    const auto heard = next();
    ASSERT_TRUE(heard.has_value());
    EXPECT_EQ(heard->head.type, FrameType::put);
    EXPECT_EQ(heard->head.spans[0].offset, 10 + heard->head.position);
    EXPECT_EQ(heard->data, Bytes(memory_.begin() + static_cast<std::ptrdiff_t>(10 + bytes),
                                 memory_.begin() +
                                     static_cast<std::ptrdiff_t>(10 + bytes + heard->data.size())));
    bytes += heard->data.size();
    last = heard->head.last;
    id = heard->head.id;
  }
  EXPECT_EQ(bytes, 6000u);
  send({.type = FrameType::ended, .id = id, .code = Code::unreachable, .text = "gone\n"});
  const Status ended = end();
  EXPECT_EQ(ended.code(), Code::unreachable);
  EXPECT_NE(ended.what().find("gone?"), std::string::npos) << ended.to_string();
  EXPECT_FALSE(remote_->alive());
}

TEST_F(TcpConnectionGroup, ReadsWhatComesInAnyOrderAndSaysIfItIsLess) {
  must(post(linkspan::Op::read, 0, 16));
  auto asked = next();
  ASSERT_TRUE(asked.has_value());
  EXPECT_EQ(asked->head.type, FrameType::get);
  send({.type = FrameType::data, .id = asked->head.id, .position = 8, .last = true}, ones(8));
  send({.type = FrameType::data, .id = asked->head.id, .position = 0}, ones(8));
  EXPECT_EQ(end().to_string(), "ok");
  EXPECT_EQ(Bytes(memory_.begin(), memory_.begin() + 16), ones(16));

  must(post(linkspan::Op::read, 32, 16));
  asked = next();
  ASSERT_TRUE(asked.has_value());
  send({.type = FrameType::data, .id = asked->head.id, .position = 0, .last = true}, ones(8));
  EXPECT_EQ(end().code(), Code::corrupt);
}

TEST_F(TcpConnectionGroup, ACanceledPutTellsHowMuchOfItThereIs) {
  // Far more than the socket takes, so that some of it is not taken yet.
  for (int i = 0; i < 60; ++i) must(post(linkspan::Op::write, 0, kBytes));
  must(post(linkspan::Op::write, 0, kBytes));
  endpoint_->cancel(cookies_);
  bool told = false;
  std::map<std::uint64_t, std::uint64_t> sent;
  for (std::size_t over = 0; over < 61;) {
    const auto heard = next();
    ASSERT_TRUE(heard.has_value());
    std::uint64_t& bytes = sent[heard->head.id];
    bytes += heard->data.size();
    if (!heard->head.last) continue;
    EXPECT_EQ(bytes, heard->head.position + heard->data.size());
    told |= heard->head.id == cookies_;
    send({.type = FrameType::ended, .id = heard->head.id});
    ++over;
  }
  EXPECT_TRUE(told);
  const Code ended = end().code();
  EXPECT_TRUE(ended == Code::canceled || ended == Code::ok) << name_of(ended);
  EXPECT_EQ(ended == Code::ok, sent[cookies_] == kBytes);
}

/// The peer may have all of it, and request more, before this side has polled again.
TEST_F(TcpConnectionGroup, AnAnswerThatWasTakenWholeIsNotInFlight) {
  ConnectionGroup group({.published = &transport_.published(),
                         .channel = &channel_,
                         .incarnation = kUs,
                         .inflight = 2});
  const auto asked = [&](std::uint64_t id) {
    return group.on_frame({.type = FrameType::get,
                           .id = id,
                           .incarnation = kPeer,
                           .serial = key_.id.serial,
                           .token = key_.token,
                           .spans = {{0, 64}}});
  };
  must(asked(1));
  must(asked(2));
  EXPECT_EQ(asked(3).code(), Code::corrupt);
  const auto chunk = group.next_chunk();
  ASSERT_TRUE(chunk && chunk->last);
  must(asked(4));
  EXPECT_EQ(asked(5).code(), Code::corrupt);
  group.sent(*chunk, {});
  group.fail(Status(Code::canceled, Scope::peer, "over"));
}

/// The connection with room could send at once, but must not pass the request on the other one.
TEST_F(TcpConnectionGroup, ACancelGoesBehindItsQuestion) {
  const auto narrow = [&] {
    const int bytes = 1 << 16;  // no less than a packet of loopback's: else it trickles
    (void)::setsockopt(received_by_, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    (void)::setsockopt(raw_.get(), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
  };
  narrow();
  base::Fd first = std::move(raw_);
  add_stream();
  narrow();
  // Questions of 64 KiB, until neither socket takes more; and one for each, to be canceled.
  const std::vector<Block> many(kMaxSpans, Block{0, 0, 1});
  for (unsigned i = 0; i < 62; ++i)
    must(endpoint_
             ->post({.op = linkspan::Op::read,
                     .local = &region_->region(),
                     .remote = remote_.get(),
                     .shape = std::span(many),
                     .cookie = ++cookies_})
             .status());
  const std::uint64_t ids[] = {cookies_ + 1, cookies_ + 2};
  for (int i = 0; i < 2; ++i) must(post(linkspan::Op::read, 0, 64));
  using QueuedFrames = std::map<std::uint64_t, std::vector<FrameType>>;
  QueuedFrames here, there;
  const auto drain = [&](QueuedFrames& said) {  // until nothing comes any more
    for (;;) {
      const auto more =
          net::receive_some(raw_, 1 << 20, base::Deadline::after(base::Clock::steady(), 100ms));
      if (!more.ok()) return;
      const auto* data = reinterpret_cast<const std::byte*>(more->data());
      heard_.insert(heard_.end(), data, data + more->size());
      for (auto size = head_bytes(heard_); size.ok() && *size && heard_.size() >= **size;
           size = head_bytes(heard_)) {
        const Head head = take(decode(std::span(heard_).first(**size)));
        said[head.id].push_back(head.type);
        heard_.erase(heard_.begin(), heard_.begin() + static_cast<std::ptrdiff_t>(**size));
      }
    }
  };
  drain(here);
  for (const std::uint64_t id : ids) endpoint_->cancel(id);
  drain(here);
  heard_.clear();
  std::swap(first, raw_);
  drain(there);
  std::swap(first, raw_);
  const std::vector<FrameType> both{FrameType::get, FrameType::cancel};
  for (const std::uint64_t id : ids)
    EXPECT_TRUE(here[id] == both ? there[id].empty() : here[id].empty() && there[id] == both)
        << here[id].size() << " here, " << there[id].size() << " there";
}

/// However small what is answered together.
TEST_F(TcpConnectionGroup, WhoReadsNoAnswersIsNotHeardForEver) {
  constexpr std::size_t kFlood = std::size_t{40} << 20;  // far more than sockets take
  Head empty = put(0, 0, 0);
  empty.spans = {};
  Bytes flood;
  while (flood.size() < kFlood) {
    ++empty.id;
    empty.notification = ones(1);
    const Bytes frame = frame_of(empty);
    flood.insert(flood.end(), frame.begin(), frame.end());
  }
  const std::string_view text(reinterpret_cast<const char*>(flood.data()), flood.size());
  const Status sent = net::send_all(raw_, text, base::Deadline::after(base::Clock::steady(), 3s));
  EXPECT_EQ(sent.code(), Code::timed_out) << sent.to_string();
}

/// The peer's user would take what is there for the data.
TEST_F(TcpConnectionGroup, NotifiesOfNoDataThatIsNotThere) {
  void* const at =
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(at, MAP_FAILED);
  const auto freed = take(registry_.add(at, kBytes, {.read = true, .write = true}, false));
  (void)take(transport_.publish(freed->region()));
  ::munmap(at, kBytes);
  const Block block{0, 0, 100};
  must(post_of(*freed, linkspan::Op::write, std::span(&block, 1), ones(7)));
  const auto heard = next();
  ASSERT_TRUE(heard.has_value());
  EXPECT_TRUE(heard->head.notification.empty());
  EXPECT_EQ(heard->data, Bytes(100));
  send({.type = FrameType::ended, .id = heard->head.id});
  const auto limit = base::Deadline::in(10s);
  while (!ends_.all.contains(cookies_) && !limit.passed()) endpoint_->progress(ends_);
  EXPECT_EQ(ends_.all[cookies_].code(), Code::unreachable);
}

TEST_F(TcpConnectionGroup, GivesThePeerUp_WhenThereWasNoMemoryForThatAtFirst) {
  channel_.no_memory = true;
  raw_ = {};  // the peer closes its only data connection
  int thrown = 0;
  const auto limit = base::Deadline::in(20s);
  while (channel_.given_up.ok() && !limit.passed()) {
    try {
      endpoint_->progress(ends_);
    } catch (const std::bad_alloc&) {
      ++thrown;
    }
  }
  EXPECT_FALSE(channel_.given_up.ok());
  EXPECT_EQ(thrown, 1);
}

TEST_F(TcpConnectionGroup, AnEndpointEndsWithoutMemory) {
  for (const bool peer_has_left : {false, true}) {
    PeerChannel channel;
    auto lonely = take(transport_.connect(
        encode(TcpTransportAddress{.incarnation = kPeer, .connections = 1, .chunk = kMinChunk}),
        channel, base::Deadline::in(10s)));
    if (peer_has_left) lonely->peer_terminated();
    std::jthread([&] {
      ::pthread_setname_np(::pthread_self(), "ls-test");
      const test::NoMemory none("ls-test");
      lonely.reset();
    }).join();
  }
}

class TcpTurnsOnDevice : public TcpConnectionGroup {
 protected:
  TcpTurnsOnDevice() : TcpConnectionGroup({.topology = test::topology()}) {}
  void SetUp() override {
    if (topology_ == nullptr) GTEST_SKIP() << test::kNeedsGpu;
    (void)add_gpu_memory(1);
  }
};

/// A socket that is always full lets slots always be ready.
TEST_F(TcpTurnsOnDevice, AreOfHostMemoryAndOfCancelsToo) {
  constexpr std::size_t kPuts = 60;
  const int out = 1, in = 65536;  // as little as can be
  (void)::setsockopt(received_by_, SOL_SOCKET, SO_SNDBUF, &out, sizeof out);
  (void)::setsockopt(raw_.get(), SOL_SOCKET, SO_RCVBUF, &in, sizeof in);
  for (std::size_t i = 0; i < kPuts; ++i) must(post_from_gpu());
  std::this_thread::sleep_for(20ms);
  must(post(linkspan::Op::write, 0, 64));
  const std::uint64_t small = cookies_, canceled = small - 1;
  endpoint_->cancel(canceled);
  std::size_t frames = 0, small_at = 0, canceled_at = 0;
  for (std::size_t over = 0; over < kPuts + 1;) {
    std::this_thread::sleep_for(1ms);  // so long the socket is full, and the GPU is done
    const auto heard = next();
    ASSERT_TRUE(heard.has_value());
    ++frames;
    if (!heard->head.last) continue;
    if (heard->head.id == small) small_at = frames;
    if (heard->head.id == canceled) canceled_at = frames;
    send({.type = FrameType::ended, .id = heard->head.id});
    ++over;
  }
  EXPECT_LT(small_at, frames / 2) << "of " << frames;
  EXPECT_LT(canceled_at, frames / 2) << "of " << frames;
}

}  // namespace tcp_connection_group_test
}  // namespace linkspan::transport::tcp
