// Tests two-sided messages: what is refused, which send meets which receive, and frames that no
// peer should send.
#include "engine/messages/message_service.hpp"

#include <algorithm>

#include "memory/descriptor.hpp"
#include "tests/unit/engine_pair.hpp"

namespace linkspan::engine {
namespace message_service_test {

using namespace std::chrono_literals;
using control::FrameOp, control::MatchSpace;
using test::impl_of, test::is, test::must, test::RawPeer, test::take;

using Bytes = std::vector<unsigned char>;

Bytes filled(std::size_t bytes, unsigned seed) {
  Bytes out(bytes);
  for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<unsigned char>(i * 7 + seed);
  return out;
}

class Messages : public test::EnginePair {
 protected:
  using Submitted = Result<Transfer>;

  static Submitted submit(const Engine& engine, const Peer& peer, const MessageKind& kind,
                          const void* data, std::uint64_t bytes, const TransferOptions& options) {
    return HandleAccess::wrap<Transfer>(
        HandleAccess::impl(engine),
        impl_of(engine).services().messages.submit(peer.id(), kind, data, bytes, options));
  }
  Submitted send(std::uint64_t tag, const Bytes& data, const TransferOptions& options = {}) {
    return submit(near_, to_far_, {.sends = true, .tag = tag}, data.data(), data.size(), options);
  }
  Submitted receive(std::uint64_t tag, Bytes& data, const TransferOptions& options = {}) {
    return submit(far_, to_near_, {.tag = tag}, data.data(), data.size(), options);
  }
  /// Checks that no message under way has memory registered.
  static void expect_no_region(const Engine& engine) {
    EXPECT_TRUE(test::eventually([&] { return test::metric(engine, "regions") == 0u; }));
  }
};

TEST_F(Messages, RefuseWhatOnlyWritesHave) {
  const Bytes data = filled(8, 1);
  const std::byte note[] = {std::byte{1}};
  EXPECT_TRUE(is(send(1, data, {.notification = note}).status(), Code::invalid_argument,
                 "a notification of a two-sided message"));
  EXPECT_TRUE(is(send(1, data, {.checksum = true}).status(), Code::unsupported, "a checksum"));
  EXPECT_TRUE(is(send(1, data, {.require = std::string(257, '!')}).status(), Code::invalid_argument,
                 "over 256 characters"));
  EXPECT_EQ(test::metric(near_, "regions"), 0u);
}

TEST_F(Messages, RefuseWhatIsNoMemory) {
  EXPECT_TRUE(is(submit(near_, to_far_, {.sends = true}, nullptr, 8, {}).status(),
                 Code::invalid_argument, "no memory"));
}

TEST_F(Messages, KeepNothing_WhenThePeerIsNotThere) {
  const Bytes data = filled(8, 1);
  EXPECT_TRUE(is(impl_of(near_)
                     .services()
                     .messages.submit(77, {.sends = true}, data.data(), data.size(), {})
                     .status(),
                 Code::disconnected));
  EXPECT_EQ(test::metric(near_, "regions"), 0u);
  must(to_far_.close());
  EXPECT_TRUE(is(send(1, data).status(), Code::disconnected));
  EXPECT_EQ(test::metric(near_, "regions"), 0u);
}

TEST_F(Messages, Arrive_WhicheverSideIsFirst) {
  for (const bool send_first : {true, false}) {
    const Bytes data = filled(5000, send_first ? 1 : 2);
    Bytes room(6000);
    Submitted sent = Status::no_resource(), received = Status::no_resource();
    if (send_first) sent = send(3, data);
    received = receive(3, room);
    if (!send_first) sent = send(3, data);
    EXPECT_TRUE(is(take(received).wait(10s), Code::ok));
    EXPECT_TRUE(is(take(sent).wait(10s), Code::ok));
    EXPECT_EQ(received->bytes(), 5000u);
    EXPECT_TRUE(std::equal(data.begin(), data.end(), room.begin()));
    EXPECT_TRUE(std::all_of(room.begin() + 5000, room.end(), [](auto b) { return b == 0; }));
  }
  expect_no_region(near_);
  expect_no_region(far_);
}

TEST_F(Messages, MatchByTag_TheOldestFirst) {
  const Bytes one = filled(100, 1), two = filled(100, 2), three = filled(100, 3);
  std::vector<Transfer> all;
  for (const auto& [tag, data] : {std::pair(5, &one), std::pair(6, &two), std::pair(5, &three)})
    all.push_back(take(send(static_cast<std::uint64_t>(tag), *data)));
  Bytes a(100), b(100), c(100);
  all.push_back(take(receive(6, a)));
  all.push_back(take(receive(5, b)));
  all.push_back(take(receive(5, c)));
  for (const Transfer& each : all) EXPECT_TRUE(is(each.wait(10s), Code::ok));
  EXPECT_TRUE(a == two && b == one && c == three);
}

TEST_F(Messages, MatchWithinTheirSpace) {
  const Bytes data = filled(100, 1), other = filled(100, 2);
  Bytes room(100), by_tag(100);
  const auto in_order = [](bool sends) {
    return MessageKind{.sends = sends, .space = MatchSpace::in_order};
  };
  const Transfer received =
      take(submit(far_, to_near_, in_order(false), room.data(), room.size(), {}));
  const Transfer tagged = take(send(0, other)), got = take(receive(0, by_tag));
  EXPECT_TRUE(is(got.wait(10s), Code::ok));
  EXPECT_FALSE(received.done());
  const Transfer sent = take(submit(near_, to_far_, in_order(true), data.data(), data.size(), {}));
  for (const Transfer& each : {received, tagged, sent}) EXPECT_TRUE(is(each.wait(10s), Code::ok));
  EXPECT_TRUE(room == data && by_tag == other);
}

TEST_F(Messages, AreTruncatedOnBothSides_WithNothingWritten) {
  const Bytes data = filled(101, 1);
  Bytes room(100);
  const Transfer sent = take(send(1, data)), received = take(receive(1, room));
  EXPECT_TRUE(is(received.wait(10s), Code::truncated,
                 "101 bytes were sent, and 100 can be received; nothing was written"));
  EXPECT_TRUE(is(sent.wait(10s), Code::truncated));
  EXPECT_EQ(received.bytes(), 0u);
  EXPECT_EQ(room, Bytes(100));
}

TEST_F(Messages, MayBeEmpty) {
  const Bytes none;
  Bytes room(100), no_room;
  for (Bytes* each : {&room, &no_room}) {
    const Transfer sent = take(send(1, none)), received = take(receive(1, *each));
    EXPECT_TRUE(is(received.wait(10s), Code::ok));
    EXPECT_TRUE(is(sent.wait(10s), Code::ok));
    EXPECT_EQ(received.bytes(), 0u);
  }
}

TEST_F(Messages, EndWithThePeer) {
  const Bytes data = filled(100, 1);
  Bytes room(100);
  const Transfer sent = take(send(1, data)), received = take(receive(2, room));
  must(near_.close(10s));
  EXPECT_TRUE(is(sent.status(), Code::canceled));
  EXPECT_TRUE(is(received.wait(10s), Code::disconnected));
  expect_no_region(near_);
  expect_no_region(far_);
}

TEST_F(Messages, TimeOut_WhenNobodyReceives) {
  const Bytes data = filled(100, 1);
  const Transfer sent = take(send(1, data, {.deadline = 20ms}));
  EXPECT_TRUE(is(sent.wait(10s), Code::timed_out));
  Bytes room(100);
  const Transfer received = take(receive(1, room));  // not by the send that gave up
  EXPECT_TRUE(is(received.cancel(), Code::ok));
  EXPECT_TRUE(is(received.status(), Code::canceled));
}

/// A message with a peer whose frames the test writes.
class RawMessages : public Messages {
 protected:
  Transfer receive_raw() { return take(raw_.peer().recv(1, room_.data(), room_.size(), {})); }
  /// Offers a message with a descriptor of that Engine, which has no key of a transport.
  void offer_with_key_of(std::uint64_t incarnation) {
    const auto descriptor =
        memory::encode({.name = {},
                        .id = {.incarnation = incarnation, .buffer = 0, .serial = 1},
                        .kind = MemoryKind::host,
                        .peers = {.read = true},
                        .gpu = {},
                        .bytes = 64,
                        .keys = {}});
    raw_.send(FrameOp::offer, 1,
              control::encode(control::MessageOffer{
                  .tag = 1, .bytes = 64, .serial = 1, .descriptor = descriptor}));
  }

  Bytes room_ = Bytes(64);
  RawPeer raw_{far_};
};

TEST_F(RawMessages, ThatAreUnknownAreAnsweredOrIgnored) {
  raw_.send(FrameOp::finished, 50, control::encode(control::MessageFinished{.by_sender = true}));
  raw_.send(FrameOp::withdraw, 51, control::encode_withdraw(true));
  const auto unknown = raw_.next(FrameOp::finished);
  EXPECT_EQ(unknown.header.id, 51u);
  EXPECT_TRUE(is(take(control::decode_finished(unknown.payload)).status, Code::not_found,
                 "no such message was offered"));
  raw_.send(FrameOp::accept, 52, control::encode(control::MessageAccept{.serial = 1}));
  const auto unsent = raw_.next(FrameOp::finished);
  EXPECT_EQ(unsent.header.id, 52u);
  EXPECT_TRUE(is(take(control::decode_finished(unsent.payload)).status, Code::not_found,
                 "no such message is sent"));
  EXPECT_EQ(raw_.peer().state(), PeerState::up);
}

TEST_F(RawMessages, ThatAreOfferedTwiceDropThePeer) {
  const auto offer = control::encode(control::MessageOffer{.tag = 9});
  raw_.send(FrameOp::offer, 1, offer);
  raw_.send(FrameOp::offer, 1, offer);
  raw_.expect_dropped();
}

TEST_F(RawMessages, ThatAreMalformedDropThePeer) {
  const std::byte rubbish[] = {std::byte{1}, std::byte{2}, std::byte{3}};
  for (const FrameOp op : {FrameOp::offer, FrameOp::accept, FrameOp::finished, FrameOp::withdraw}) {
    RawPeer raw(far_);
    const Transfer received = take(raw.peer().recv(1, room_.data(), room_.size()));
    raw.send(op, 1, rubbish);
    raw.expect_dropped();
    EXPECT_TRUE(is(received.wait(10s), Code::disconnected)) << static_cast<int>(op);
  }
  EXPECT_EQ(to_near_.state(), PeerState::up);
}

TEST_F(RawMessages, WithAKeyOfAnotherEngineDropThePeer) {
  const Transfer received = receive_raw();
  offer_with_key_of(4711);
  raw_.expect_dropped();
  EXPECT_TRUE(is(received.wait(10s), Code::disconnected));
}

TEST_F(RawMessages, WithAKeyThatDoesNotOpenEndBothSides) {
  const Transfer received = receive_raw();
  offer_with_key_of(test::kRawIncarnation);
  EXPECT_TRUE(is(received.wait(10s), Code::unreachable, "a key for no transport of ours"));
  const auto finished = take(control::decode_finished(raw_.next(FrameOp::finished).payload));
  EXPECT_TRUE(is(finished.status, Code::unreachable));
  EXPECT_EQ(raw_.peer().state(), PeerState::up);
}

}  // namespace message_service_test
}  // namespace linkspan::engine
