// Tests an Inbox: the order of notifications that come by different ways, its bounds, and waits.
#include "engine/notifications/inbox.hpp"

#include <thread>

#include "tests/unit/engine_fixture.hpp"

namespace linkspan::engine {
namespace inbox_test {

using namespace std::chrono_literals;
using control::FrameOp;
using test::bytes_of, test::must, test::take;

class InboxTest : public ::testing::Test {
 protected:
  using Texts = std::vector<std::string>;

  void SetUp() override { inbox_.add_peer(session_.session()); }
  void frame(std::string_view text) { inbox_.on_frame(*session_.session(), bytes_of(text)); }
  void write(std::string_view text, std::uint64_t after) {
    inbox_.on_write(*session_.session(), bytes_of(text), after);
  }
  static Texts texts_of(const std::vector<Notification>& all) {
    Texts texts;
    for (const Notification& each : all) texts.push_back(test::text_of(each.bytes));
    return texts;
  }
  Texts collect() { return texts_of(inbox_.collect()); }
  /// Returns the writer of the ring that the Session has sent with its hello.
  control::NotificationRing open_ring() {
    must(session_.session()->start());
    const auto hello = session_.next();
    if (!hello || hello->fds.size() != 2) throw std::runtime_error("there is no ring");
    return take(control::NotificationRing::open(hello->fds[1]));
  }

  std::vector<std::string> lines_;
  const base::Log log_{base::Level::error,
                       [this](base::Level, std::string_view line) { lines_.emplace_back(line); }};
  test::TestSession session_{1};
  Inbox inbox_{log_};
};

TEST_F(InboxTest, CollectsFramesOnceInTheirOrder) {
  frame("a");
  frame("b");
  const auto all = inbox_.collect();
  ASSERT_EQ(texts_of(all), (Texts{"a", "b"}));
  EXPECT_EQ(all[0].peer, 1u);
  EXPECT_TRUE(collect().empty());
}

TEST_F(InboxTest, MakesProgressBeforeAndWhileItWaits) {
  int calls = 0;
  const auto progress = [&] { ++calls; };
  EXPECT_TRUE(inbox_.collect(Duration::zero(), progress).empty());
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(inbox_.collect(std::chrono::milliseconds(1), progress).empty());
  EXPECT_GT(calls, 2);
  const auto all = inbox_.collect(std::chrono::seconds(10), [&] { frame("by progress"); });
  EXPECT_EQ(texts_of(all), Texts{"by progress"});
}

TEST_F(InboxTest, CollectsFromTheRing) {
  auto ring = open_ring();
  must(ring.put(bytes_of("a")));
  must(ring.put(bytes_of("b")));
  EXPECT_EQ(collect(), (Texts{"a", "b"}));
  EXPECT_TRUE(collect().empty());
  EXPECT_EQ(inbox_.received(1), 2u);
  EXPECT_EQ(inbox_.received(), 2u);
}

TEST_F(InboxTest, CollectsWhatItHasDrainedBeforeTheRestOfTheRing) {
  auto ring = open_ring();
  must(ring.put(bytes_of("a")));
  inbox_.on_collect_request(*session_.session());
  must(ring.put(bytes_of("b")));
  EXPECT_EQ(collect(), (Texts{"a", "b"}));
}

TEST_F(InboxTest, HoldsANotificationOfAWriteBack_UntilTheEarlierFramesHaveCome) {
  write("after two", 2);
  write("after one", 1);
  write("after two too", 2);
  EXPECT_TRUE(collect().empty());
  frame("one");
  EXPECT_EQ(collect(), (Texts{"one", "after one"}));
  frame("two");
  EXPECT_EQ(collect(), (Texts{"two", "after two", "after two too"}));
  write("after two, late", 2);
  EXPECT_EQ(collect(), Texts{"after two, late"});
  EXPECT_EQ(inbox_.received(1), 6u);
}

TEST_F(InboxTest, LosesTheOrderAndNoNotification_BeyondTheBoundOfEarlyOnes) {
  const std::string large(Inbox::kMaxMessage, 'x');
  const std::size_t most = Inbox::kMaxEarlyBytes / large.size();
  for (std::size_t i = 0; i < most; ++i) write(large, 5);
  EXPECT_TRUE(collect().empty());
  write("one too many", 5);
  EXPECT_EQ(collect().size(), most);
  for (std::size_t i = 1; i <= 5; ++i) frame("frame");
  EXPECT_EQ(collect().back(), "one too many");
}

TEST_F(InboxTest, DeliversWhatIsLeft_WhenAPeerIsGone) {
  auto ring = open_ring();
  must(ring.put(bytes_of("in the ring")));
  write("early", 5);
  inbox_.remove_peer(*session_.session());
  EXPECT_EQ(collect(), (Texts{"in the ring", "early"}));
  EXPECT_EQ(inbox_.received(1), 0u) << "it is forgotten";
  EXPECT_EQ(inbox_.received(), 2u);
  must(ring.put(bytes_of("too late")));
  EXPECT_TRUE(collect().empty());
}

TEST_F(InboxTest, DropsNotificationsOfFramesBeyondTheBound_AndLogsItOnce) {
  for (std::size_t i = 0; i < Inbox::kMaxWaiting + 2; ++i) frame("");
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_NE(lines_[0].find("are dropped: 65536 wait"), std::string::npos) << lines_[0];
  EXPECT_EQ(collect().size(), Inbox::kMaxWaiting);
  EXPECT_EQ(inbox_.received(1), Inbox::kMaxWaiting + 2);
  frame("there is room again");
  EXPECT_EQ(collect(), Texts{"there is room again"});
}

TEST_F(InboxTest, BoundsTheBytesOfOnePeer_AndNotThoseOfAnother) {
  test::TestSession other(2);
  inbox_.add_peer(other.session());
  const std::string large(Inbox::kMaxMessage, 'x');
  const std::size_t most = Inbox::kMaxWaitingBytes / large.size();
  for (std::size_t i = 0; i < most + 1; ++i) frame(large);
  EXPECT_EQ(lines_.size(), 1u);
  inbox_.on_frame(*other.session(), bytes_of("of another"));
  const auto all = inbox_.collect();
  EXPECT_EQ(all.size(), most + 1);
  EXPECT_EQ(all.back().peer, 2u);
}

TEST_F(InboxTest, LeavesInTheRing_WhatHasNoRoom) {
  auto ring = open_ring();
  const std::string large(Inbox::kMaxMessage, 'x');
  for (std::size_t i = 0; i < Inbox::kMaxWaitingBytes / large.size(); ++i) frame(large);
  must(ring.put(bytes_of("waits in the ring")));
  inbox_.on_collect_request(*session_.session());
  EXPECT_TRUE(lines_.empty());
  EXPECT_EQ(collect().back(), "waits in the ring");
}

TEST_F(InboxTest, FailsThePeer_ThatSendsTooManyBytesInAFrame) {
  frame(std::string(Inbox::kMaxMessage + 1, 'x'));
  EXPECT_TRUE(session_.session()->is_disconnected());
  EXPECT_EQ(session_.session()->failure().code(), Code::corrupt);
  EXPECT_TRUE(collect().empty());
}

TEST_F(InboxTest, ReturnsNothing_WhenTheTimeIsOver) {
  EXPECT_TRUE(inbox_.collect(1ms).empty());
  EXPECT_TRUE(inbox_.collect(0ms).empty());
}

/// Runs collect() with a long time on another thread, while `act` runs here.
class InboxWait : public InboxTest {
 protected:
  template <class Act>
  Texts during_wait(const Act& act) {
    Texts texts;
    std::jthread waiter([&] { texts = texts_of(inbox_.collect(10s)); });
    act();
    waiter.join();
    EXPECT_FALSE(limit_.passed());
    return texts;
  }

  const base::Deadline limit_ = base::Deadline::in(10s);
};

TEST_F(InboxWait, Ends_WhenAFrameComes) {
  EXPECT_EQ(during_wait([&] { frame("a"); }), Texts{"a"});
}

TEST_F(InboxWait, Ends_WhenANotificationComesWithAWrite) {
  EXPECT_EQ(during_wait([&] { write("a", 0); }), Texts{"a"});
}

/// The peer rings the doorbell that the wait has asked for.
TEST_F(InboxWait, Ends_WhenTheRingOfASleepingReaderGetsAMessage) {
  auto ring = open_ring();
  EXPECT_EQ(during_wait([&] {
              while (!ring.consume_doorbell_request() && !limit_.passed())
                std::this_thread::yield();
              must(ring.put(bytes_of("a")));
              inbox_.on_collect_request(*session_.session());
            }),
            Texts{"a"});
}

TEST_F(InboxWait, Ends_WhenANewPeerHasSentAlready) {
  test::TestSession other(2);
  must(other.session()->start());
  const auto hello = other.next();
  ASSERT_TRUE(hello && hello->fds.size() == 2);
  auto ring = take(control::NotificationRing::open(hello->fds[1]));
  auto first = open_ring();
  EXPECT_EQ(during_wait([&] {
              while (!first.consume_doorbell_request() && !limit_.passed())
                std::this_thread::yield();
              must(ring.put(bytes_of("a")));
              inbox_.add_peer(other.session());
            }),
            Texts{"a"});
}

TEST_F(InboxWait, EndsWithoutANotification_WhenTheEngineCloses) {
  EXPECT_TRUE(during_wait([&] { inbox_.close(); }).empty());
  EXPECT_TRUE(inbox_.collect(10s).empty()) << "also one that begins later";
  EXPECT_FALSE(limit_.passed());
}

}  // namespace inbox_test
}  // namespace linkspan::engine
