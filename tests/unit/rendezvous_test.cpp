// Tests two Rendezvous whose messages the test delivers: each row is an order of messages.
#include "engine/messages/rendezvous.hpp"

#include <gtest/gtest.h>

#include <map>
#include <optional>

#include "tests/support/no_memory.hpp"

namespace linkspan::engine {
namespace rendezvous_test {

using control::FrameOp;

constexpr std::uint64_t kPeer = 1;

/// One Engine as its Rendezvous sees it. Messages to the other side wait until deliver().
class Side final : public RendezvousHost {
 public:
  struct Frame {
    FrameOp op;
    std::uint64_t id;
    std::vector<std::byte> payload;
  };

  Status send_frame(FrameOp op, std::uint64_t id, std::span<const std::byte> payload) override {
    if (deaf) return {Code::disconnected, Scope::peer, "nobody hears"};
    told.push_back({op, id, {payload.begin(), payload.end()}});
    return {};
  }
  Status copy(TransferState& transfer) override {
    if (std::exchange(no_memory, false)) throw std::bad_alloc();
    copying.push_back(&transfer);
    return {};
  }
  void stop(TransferState& transfer) override { stopped.push_back(&transfer); }
  void matched(const TransferState&) override {}
  void end(TransferState& transfer, const Status& status) override {
    EXPECT_FALSE(ended.contains(&transfer)) << "it ended twice";
    ended[&transfer] = status;
  }
  void drop(std::shared_ptr<void>) override {}

  bool no_memory = false;  // copy() throws once
  TransferState& send(std::uint64_t tag, std::uint64_t bytes, bool to_region = true) {
    TransferState& transfer = make(true, tag, bytes);
    told.push_back({FrameOp::offer, transfer.id,
                    control::encode(control::MessageOffer{
                        .tag = tag, .bytes = bytes, .serial = bytes == 0 ? 0u : 7u})});
    has_key = to_region;
    rendezvous.post(transfer);
    return transfer;
  }
  TransferState& receive(std::uint64_t tag, std::uint64_t room,
                         MemoryKind kind = MemoryKind::host) {
    TransferState& transfer = make(false, tag, room);
    transfer.message->kind = kind;
    rendezvous.post(transfer);
    return transfer;
  }
  void cancel(TransferState& transfer) {
    transfer.ending.canceled = true;
    rendezvous.stop(transfer);
  }
  void copied(TransferState& transfer, const Status& status = {}) {
    ASSERT_EQ(std::erase(copying, &transfer), 1u) << "it does not copy";
    rendezvous.copied(transfer, status);
  }
  /// Returns "" while the transfer goes on.
  std::string end_of(const TransferState& transfer) const {
    const auto found = ended.find(&transfer);
    return found == ended.end() ? "" : name_of(found->second.code());
  }

  Rendezvous rendezvous{*this};
  std::deque<Frame> told;
  std::vector<TransferState*> copying, stopped;
  std::map<const TransferState*, Status> ended;
  bool deaf = false;
  bool has_key = true;  // an offer's key came with it

 private:
  TransferState& make(bool sends, std::uint64_t tag, std::uint64_t bytes) {
    auto transfer = std::make_unique<TransferState>();
    transfer->id = ++last_id_;
    transfer->peer = kPeer;
    transfer->bytes = bytes;
    transfer->message = std::make_unique<MessageState>();
    transfer->message->sends = sends;
    transfer->message->tag = tag;
    all_.push_back(std::move(transfer));
    return *all_.back();
  }
  std::vector<std::unique_ptr<TransferState>> all_;
  std::uint64_t last_id_ = 0;
};

std::shared_ptr<ImportedRegion> region() { return std::make_shared<ImportedRegion>(); }

/// Delivers the oldest frame of `from`.
Status deliver_one(Side& from, Side& to) {
  const Side::Frame frame = from.told.front();
  from.told.pop_front();
  Rendezvous& heard = to.rendezvous;
  switch (frame.op) {
    case FrameOp::offer: {
      const auto offer = control::decode_offer(frame.payload);
      if (!offer.ok()) return offer.status();
      return heard.on_offer(frame.id, *offer, from.has_key ? region() : nullptr);
    }
    case FrameOp::accept:  // without a TemporaryRegistration it says no serial
      return heard.on_accept(frame.id, {.kind = MemoryKind::device, .serial = 9});
    case FrameOp::finished: {
      const auto finished = control::decode_finished(frame.payload);
      if (!finished.ok()) return finished.status();
      return heard.on_finished(frame.id, *finished);
    }
    case FrameOp::withdraw: {
      const auto by_sender = control::decode_withdraw(frame.payload);
      if (!by_sender.ok()) return by_sender.status();
      heard.on_withdraw(frame.id, *by_sender);
      return {};
    }
    case FrameOp::import:
      from.rendezvous.on_imported(frame.id & ~Rendezvous::kBySerial, region());
      return {};
    default:
      return {Code::internal, Scope::request, "no such frame"};
  }
}

class RendezvousTest : public ::testing::Test {
 protected:
  void deliver(Side& from, Side& to) {
    while (!from.told.empty()) EXPECT_EQ(deliver_one(from, to).to_string(), "ok");
  }
  void talk() {
    while (!sender_.told.empty() || !receiver_.told.empty()) {
      deliver(sender_, receiver_);
      deliver(receiver_, sender_);
    }
  }
  /// Checks that the next pair of the tag matches and nothing else does, whatever happened before.
  void expect_well(std::uint64_t tag = 1) {
    TransferState& send = sender_.send(tag, 10);
    TransferState& receive = receiver_.receive(tag, 10);
    talk();
    ASSERT_EQ(receiver_.copying, std::vector<TransferState*>{&receive});
    receiver_.copied(receive);
    talk();
    EXPECT_EQ(sender_.end_of(send), "ok");
    EXPECT_EQ(receiver_.end_of(receive), "ok");
  }

  Side sender_, receiver_;
};

TEST_F(RendezvousTest, MatchesTheOldestOfATag) {
  TransferState& first = sender_.send(1, 10);
  TransferState& other = sender_.send(2, 20);
  TransferState& second = sender_.send(1, 30);
  TransferState& early = receiver_.receive(1, 100);
  talk();
  TransferState& late = receiver_.receive(1, 100);
  EXPECT_EQ(early.message->offer.id, first.id);
  EXPECT_EQ(late.message->offer.id, second.id);
  receiver_.copied(late);  // they may end in any order
  receiver_.copied(early);
  talk();
  EXPECT_EQ(early.bytes, 10u);
  EXPECT_EQ(late.bytes, 30u);
  EXPECT_EQ(sender_.end_of(first) + sender_.end_of(second) + sender_.end_of(other), "okok");
}

TEST_F(RendezvousTest, NoBytesAreAMessage) {
  TransferState& send = sender_.send(1, 0);
  TransferState& receive = receiver_.receive(1, 0);
  talk();
  EXPECT_EQ(sender_.end_of(send), "ok");
  EXPECT_EQ(receiver_.end_of(receive), "ok");
  EXPECT_TRUE(receiver_.copying.empty());
}

TEST_F(RendezvousTest, TruncatesOnBothSides) {
  TransferState& send = sender_.send(1, 11);
  TransferState& receive = receiver_.receive(1, 10);
  talk();
  EXPECT_EQ(sender_.end_of(send), "truncated");
  EXPECT_EQ(receiver_.end_of(receive), "truncated");
  EXPECT_TRUE(receiver_.copying.empty());
  expect_well();
}

TEST_F(RendezvousTest, EndsOnBothSides_WhenThereIsNoMemoryForTheCopy) {
  TransferState& send = sender_.send(1, 10);
  receiver_.no_memory = true;
  TransferState& receive = receiver_.receive(1, 10);
  talk();
  EXPECT_EQ(receiver_.end_of(receive), "system");
  EXPECT_EQ(sender_.end_of(send), "system");
  expect_well();
}

TEST_F(RendezvousTest, ASendWithdrawnBeforeAReceive) {
  TransferState& send = sender_.send(1, 10);
  talk();
  sender_.cancel(send);
  EXPECT_EQ(sender_.end_of(send), "") << "the peer may read it until it has heard";
  talk();
  EXPECT_EQ(sender_.end_of(send), "canceled");
  expect_well();
}

TEST_F(RendezvousTest, ASendWithdrawnWhileItIsRead) {
  TransferState& send = sender_.send(1, 10);
  TransferState& receive = receiver_.receive(1, 10);
  deliver(sender_, receiver_);
  sender_.cancel(send);
  talk();
  EXPECT_EQ(receiver_.stopped, std::vector<TransferState*>{&receive});
  EXPECT_EQ(sender_.end_of(send), "");
  receiver_.copied(receive, Status(Code::canceled, Scope::request, "stopped"));
  talk();
  EXPECT_EQ(sender_.end_of(send), "canceled");
  EXPECT_EQ(receiver_.end_of(receive), "canceled");
  expect_well();
}

TEST_F(RendezvousTest, ASendWithdrawnWhileItsRegionIsImported) {
  TransferState& send = sender_.send(1, 10, false);
  TransferState& receive = receiver_.receive(1, 10);
  deliver(sender_, receiver_);
  ASSERT_EQ(receiver_.told.front().op, FrameOp::import);
  const Side::Frame import = receiver_.told.front();
  receiver_.told.pop_front();
  TransferState& behind = receiver_.receive(1, 10);
  sender_.cancel(send);
  talk();
  EXPECT_EQ(sender_.end_of(send), "canceled");
  EXPECT_EQ(receiver_.end_of(receive), "") << "nothing was read: it stands first in its line";
  receiver_.told.push_back(import);  // its answer comes late
  talk();
  EXPECT_TRUE(receiver_.copying.empty());
  TransferState& again = sender_.send(1, 9);
  talk();
  receiver_.copied(receive);
  talk();
  EXPECT_EQ(receive.bytes, 9u);
  EXPECT_EQ(sender_.end_of(again), "ok");
  receiver_.cancel(behind);
  expect_well();
}

TEST_F(RendezvousTest, ASendWithdrawnBeforeItsAcceptArrives) {
  TransferState& send = sender_.send(1, 10);
  TransferState& receive = receiver_.receive(1, 10, MemoryKind::device);
  deliver(sender_, receiver_);  // the accept is on its way
  sender_.cancel(send);
  talk();
  EXPECT_EQ(sender_.end_of(send), "canceled");
  EXPECT_EQ(receiver_.end_of(receive), "");
  EXPECT_TRUE(sender_.copying.empty());
  TransferState& again = sender_.send(1, 8);
  talk();
  sender_.copied(again);
  talk();
  EXPECT_EQ(receiver_.end_of(receive), "ok");
  EXPECT_EQ(receive.bytes, 8u);
  expect_well();
}

TEST_F(RendezvousTest, AReceiveWithdrawnBeforeTheSenderWrites) {
  TransferState& send = sender_.send(1, 10);
  TransferState& receive = receiver_.receive(1, 10, MemoryKind::device);
  deliver(sender_, receiver_);
  ASSERT_TRUE(deliver_one(receiver_, sender_).ok());  // the accept
  ASSERT_EQ(sender_.told.front().op, FrameOp::import);
  const Side::Frame import = sender_.told.front();
  sender_.told.pop_front();
  receiver_.cancel(receive);
  EXPECT_EQ(receiver_.end_of(receive), "") << "the peer may write until it has heard";
  talk();
  EXPECT_EQ(receiver_.end_of(receive), "canceled");
  EXPECT_EQ(sender_.end_of(send), "") << "nothing was written: it is offered as before";
  sender_.told.push_back(import);
  talk();
  EXPECT_TRUE(sender_.copying.empty());
  TransferState& next = receiver_.receive(1, 10);
  talk();
  receiver_.copied(next);
  talk();
  EXPECT_EQ(sender_.end_of(send), "ok");
  expect_well();
}

TEST_F(RendezvousTest, AReceiveWithdrawnWhileTheSenderWrites) {
  TransferState& send = sender_.send(1, 10);
  TransferState& receive = receiver_.receive(1, 10, MemoryKind::device);
  talk();
  ASSERT_EQ(sender_.copying, std::vector<TransferState*>{&send});
  receiver_.cancel(receive);
  talk();
  EXPECT_EQ(sender_.stopped, std::vector<TransferState*>{&send});
  EXPECT_EQ(receiver_.end_of(receive), "");
  sender_.copied(send);  // it was faster
  talk();
  EXPECT_EQ(sender_.end_of(send), "ok");
  EXPECT_EQ(receiver_.end_of(receive), "ok");
  expect_well();
}

TEST_F(RendezvousTest, BothWithdrawAtOnce) {
  TransferState& send = sender_.send(1, 10);
  TransferState& receive = receiver_.receive(1, 10, MemoryKind::device);
  deliver(sender_, receiver_);
  sender_.cancel(send);
  receiver_.cancel(receive);
  talk();
  EXPECT_EQ(sender_.end_of(send), "canceled");
  EXPECT_EQ(receiver_.end_of(receive), "canceled");
  expect_well();
}

TEST_F(RendezvousTest, AWithdrawalThatCrossesTheEnd) {
  TransferState& send = sender_.send(1, 10);
  TransferState& receive = receiver_.receive(1, 10);
  deliver(sender_, receiver_);
  receiver_.copied(receive);
  sender_.cancel(send);
  talk();
  EXPECT_EQ(sender_.end_of(send), "ok");
  expect_well();
}

TEST_F(RendezvousTest, MatchesThatAreUndoneOldestFirstLeaveTheirOrder) {
  TransferState* const sends[] = {&sender_.send(1, 10, false), &sender_.send(1, 20, false)};
  TransferState* const given_up[] = {&receiver_.receive(1, 20), &receiver_.receive(1, 20)};
  deliver(sender_, receiver_);  // both wait for the key
  for (TransferState* const each : given_up) receiver_.cancel(*each);
  TransferState& first = receiver_.receive(1, 20);
  TransferState& second = receiver_.receive(1, 20);
  talk();
  ASSERT_EQ(receiver_.copying.size(), 2u);
  EXPECT_EQ(first.message->offer.bytes, 10u);
  EXPECT_EQ(second.message->offer.bytes, 20u);
  receiver_.copied(first);
  receiver_.copied(second);
  talk();
  for (TransferState* const each : sends) EXPECT_EQ(sender_.end_of(*each), "ok");
}

/// The engine cancels again whatever had no memory.
TEST_F(RendezvousTest, AMatchThatIsUndoneWithoutMemoryGivesItsOfferToTheNextReceive) {
  struct Match {
    Match() : send(&sender.send(1, 10, false)), given_up(&receiver.receive(1, 20)) {}
    Side sender, receiver;
    TransferState *send, *given_up;
  };
  std::optional<Match> match;
  const auto import = [&] {
    match.emplace();
    deliver(match->sender, match->receiver);  // it waits for the key
  };
  import();
  test::fail_each_allocation([&] { match->receiver.cancel(*match->given_up); },
                             [&](bool threw) {
                               Side& receiver = match->receiver;
                               if (threw) receiver.cancel(*match->given_up);
                               EXPECT_EQ(receiver.end_of(*match->given_up), "canceled");
                               const TransferState& next = receiver.receive(1, 20);
                               deliver(receiver, match->sender);
                               ASSERT_EQ(receiver.copying.size(), 1u);
                               EXPECT_EQ(receiver.copying.front(), &next);
                               EXPECT_EQ(next.message->offer.id, match->send->id);
                               EXPECT_EQ(next.message->offer.bytes, 10u);
                               import();
                             });
}

TEST_F(RendezvousTest, ReceivesWhoseSendsAreWithdrawnOldestFirstKeepTheirOrder) {
  TransferState* const withdrawn[] = {&sender_.send(2, 10, false), &sender_.send(2, 20, false)};
  TransferState& first = receiver_.receive(2, 30);
  TransferState& second = receiver_.receive(2, 30);
  deliver(sender_, receiver_);
  receiver_.told.clear();  // the key does not come
  for (TransferState* const each : withdrawn) sender_.cancel(*each);
  deliver(sender_, receiver_);
  sender_.send(2, 11);
  sender_.send(2, 22);
  talk();
  EXPECT_EQ(first.message->offer.bytes, 11u);
  EXPECT_EQ(second.message->offer.bytes, 22u);
}

TEST_F(RendezvousTest, AKeyThatDoesNotOpenIsAskedForAgainAndOnce) {
  TransferState& send = sender_.send(1, 10, false);
  TransferState& receive = receiver_.receive(1, 10);
  deliver(sender_, receiver_);
  const Status closed(Code::corrupt, Scope::request, "it does not open");
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(receiver_.told.size(), 1u);
    ASSERT_EQ(receiver_.told.front().op, FrameOp::import);
    receiver_.told.clear();
    EXPECT_EQ(receiver_.end_of(receive), "");
    receiver_.rendezvous.on_imported(7, closed);
  }
  EXPECT_EQ(receiver_.end_of(receive), "corrupt");
  talk();
  EXPECT_EQ(sender_.end_of(send), "corrupt");
  expect_well();
}

TEST_F(RendezvousTest, ALostPeerKeepsWhatItMayTouchUntilItIsGone) {
  TransferState& offered = sender_.send(1, 10);
  TransferState& empty = sender_.send(9, 0);
  TransferState& alone = sender_.receive(2, 10);
  TransferState& lent = sender_.receive(3, 10, MemoryKind::device);
  TransferState& pushes = sender_.send(4, 10);
  receiver_.send(3, 10);
  receiver_.receive(4, 10, MemoryKind::device);
  deliver(receiver_, sender_);
  talk();
  ASSERT_EQ(sender_.copying, std::vector<TransferState*>{&pushes});
  sender_.deaf = true;
  sender_.rendezvous.on_peer_lost();
  EXPECT_EQ(sender_.end_of(alone), "disconnected");
  EXPECT_EQ(sender_.end_of(empty), "disconnected");
  sender_.cancel(offered);
  EXPECT_EQ(sender_.end_of(offered) + sender_.end_of(lent) + sender_.end_of(pushes), "");
  sender_.rendezvous.on_peer_gone();
  EXPECT_EQ(sender_.end_of(offered), "disconnected");
  EXPECT_EQ(sender_.end_of(lent), "disconnected");
  EXPECT_EQ(sender_.end_of(pushes), "") << "it runs here, to its own end";
  sender_.copied(pushes);
  EXPECT_EQ(sender_.end_of(pushes), "disconnected") << "nobody could be told of it";
}

TEST_F(RendezvousTest, KeepsItsBoundOfOffers) {
  for (std::uint64_t id = 1; id <= Rendezvous::kOffers; ++id)
    ASSERT_TRUE(
        receiver_.rendezvous.on_offer(id, {.tag = id}, std::shared_ptr<ImportedRegion>()).ok());
  ASSERT_TRUE(receiver_.told.empty());
  ASSERT_TRUE(
      receiver_.rendezvous.on_offer(99999, {.tag = 1}, std::shared_ptr<ImportedRegion>()).ok());
  ASSERT_EQ(receiver_.told.size(), 1u);
  const auto refusal = control::decode_finished(receiver_.told.front().payload);
  ASSERT_TRUE(refusal.ok());
  EXPECT_EQ(refusal->status.code(), Code::no_resource);
  receiver_.receive(500, 0);  // makes room
  EXPECT_TRUE(
      receiver_.rendezvous.on_offer(99999, {.tag = 1}, std::shared_ptr<ImportedRegion>()).ok());
  EXPECT_EQ(receiver_.told.size(), 2u);
}

TEST_F(RendezvousTest, AHostilePeerIsDroppedOrAnswered) {
  Rendezvous& it = receiver_.rendezvous;
  const auto offer = [&](std::uint64_t id) {
    return it.on_offer(id, {.tag = 1, .bytes = 5, .serial = 7}, region());
  };
  EXPECT_EQ(offer(0).code(), Code::corrupt) << "a receive that is unmatched has that number";
  ASSERT_TRUE(offer(5).ok());
  EXPECT_EQ(offer(5).code(), Code::corrupt) << "twice";
  TransferState& receive = receiver_.receive(1, 10);
  EXPECT_EQ(offer(5).code(), Code::corrupt) << "twice, and matched";
  EXPECT_EQ(it.on_finished(5, {.by_sender = true}).code(), Code::corrupt)
      << "it is this side that copies";
  EXPECT_TRUE(it.on_finished(6, {.by_sender = true}).ok());
  EXPECT_TRUE(it.on_finished(6, {.by_sender = false}).ok());
  EXPECT_TRUE(it.on_accept(6, {.serial = 1}).ok());
  it.on_withdraw(6, true);
  it.on_withdraw(6, false);
  EXPECT_EQ(receiver_.told.size(), 3u) << "each unknown one was answered";
  receiver_.copied(receive);
  TransferState& lent = receiver_.receive(1, 10, MemoryKind::device);
  ASSERT_TRUE(offer(8).ok());
  EXPECT_EQ(it.on_finished(8, {.by_sender = true, .untouched = true}).code(), Code::corrupt)
      << "given back unasked";
  EXPECT_EQ(receiver_.end_of(lent), "");
  TransferState& send = receiver_.send(4, 10);
  EXPECT_TRUE(it.on_accept(send.id, {.serial = 1}).ok());
  EXPECT_EQ(it.on_accept(send.id, {.serial = 1}).code(), Code::corrupt);
  EXPECT_EQ(it.on_finished(send.id, {}).code(), Code::corrupt);
  it.on_imported(12345, region());  // not asked for
}

}  // namespace rendezvous_test
}  // namespace linkspan::engine
