// Tests a cut cable, or a stopped far process, during transfers: all of them end by themselves, and
// another peer of the same Engine does not notice.
#include <signal.h>

#include <cstdlib>
#include <future>

#include "tests/conformance/engine_world.hpp"
#include "tests/hosts/hosts.hpp"
#include "tests/support/sanitizer_order.hpp"

namespace linkspan::test {
namespace cuts_test {

constexpr std::uint64_t kBytes = 8u << 20, kCount = 8;

class HostCuts : public OnHosts {
 protected:
  void SetUp() override {
    EngineOptions options = engine_options("near");
    options.transport = transport_;
    join(Cable::slow, options);  // so that much is in flight
    if (IsSkipped()) return;
    for (const char* name : {"written", "read"}) {
      far().add(name, {.kind = "host", .bytes = kBytes});
      held_.push_back(Held::make(engine(), {.kind = "host", .bytes = kBytes}));
    }
    third().add("beside", {.kind = "host", .bytes = kBytes / 8});
    beside_ = Held::make(engine(), {.kind = "host", .bytes = kBytes / 8});
    peer_ = hosts_->connect(far().address());
    other_ = hosts_->connect(third().address());
    written_ = take(peer_.lookup("written"));
    read_ = take(peer_.lookup("read"));
    there_ = take(other_.lookup("beside"));
    out().fill(1);
    in().fill(2);
    far().fill("written", 3);
    far().fill("read", 4);
  }
  Held& out() { return held_[0]; }
  Held& in() { return held_[1]; }

  /// Starts one transfer of each kind for each part from `first` to `end`.
  void start(std::uint64_t first, std::uint64_t end, Duration deadline = {},
             std::initializer_list<Op> ops = {Op::write, Op::read}) {
    for (std::uint64_t i = first; i < end; ++i)
      for (const Op op : ops) {
        const Block part = part_of(kBytes, i, kCount);
        const auto one = std::span(&part, 1);
        const TransferOptions options{.deadline = deadline};
        moving_.push_back(take(op == Op::write ? peer_.write(out().region, written_, one, options)
                                               : peer_.read(in().region, read_, one, options)));
      }
  }
  /// Moves bytes with the third peer and verifies each.
  void move_beside() {
    const Block all{0, 0, kBytes / 8};
    for (const Op op : {Op::write, Op::read})
      expect_moved(third(), "beside", beside_, op, std::span(&all, 1), seed_ += 2, [&] {
        return op == Op::write ? other_.write(beside_.region, there_, std::span(&all, 1))
                               : other_.read(beside_.region, there_, std::span(&all, 1));
      });
  }
  bool all_quiet() const {
    return std::ranges::all_of(moving_, [](const Transfer& each) { return each.done(); });
  }
  /// Waits until all are quiet while the cable stays cut, and checks that the third peer goes on.
  void expect_to_end_badly() {
    const auto limit = base::Deadline::after(base::Clock::steady(), 60s);
    do {
      move_beside();
    } while (!all_quiet() && !limit.passed());
    ASSERT_TRUE(all_quiet()) << engine().dump();
    bool failed = false;
    for (const Transfer& each : moving_) {
      const Status end = each.status();
      EXPECT_TRUE(end.ok() || end.code() == Code::disconnected || end.code() == Code::timed_out)
          << end.to_string();
      failed |= !end.ok();
    }
    EXPECT_TRUE(failed);
  }
  /// Checks that nothing lands or is sent: a kernel that still has bytes retries after 6.2 s of a
  /// cut.
  void expect_nothing_lands_here() {
    const auto limit = base::Deadline::after(base::Clock::steady(), 3s);
    while (!limit.passed()) move_beside();
    EXPECT_EQ(out().difference(5), "");
    EXPECT_EQ(in().difference(6), "");
  }

  /// Connects again in the place of peer_, which has ended. Moves bytes both ways, started by
  /// either side; the old one's handles reach nothing.
  void meet_again(const Peer& peer) {
    EXPECT_NE(peer.id(), peer_.id());
    const Block all{0, 0, kBytes};
    const auto one = std::span(&all, 1);
    const RemoteRegion written = take(peer.lookup("written")), read = take(peer.lookup("read"));
    expect_moved(far(), "written", out(), Op::write, one, seed_ += 2,
                 [&] { return peer.write(out().region, written, one); });
    expect_moved(far(), "read", in(), Op::read, one, seed_ += 2,
                 [&] { return peer.read(in().region, read, one); });
    far().accept();
    in().fill(5);
    far().fill("read", 6);
    order_accesses(engine());
    far().start("read", "near", 1);
    EXPECT_EQ(far().ends(), std::vector<std::string>{"ok"});
    order_accesses(engine());
    EXPECT_EQ(in().difference(5, {{0, 6, 0, kBytes}}), "");

    EXPECT_EQ(finished(peer_.write(out().region, written_, one)).code(), Code::disconnected);
    EXPECT_EQ(peer_.lookup("read").status().code(), Code::disconnected);
    EXPECT_EQ(finished(peer.write(out().region, written_, one)).code(), Code::invalid_argument);
    EXPECT_EQ(far().difference("read", 6), "");
    move_beside();
  }

  std::map<std::string, std::string> transport_;
  Held beside_;
  Peer peer_, other_;
  RemoteRegion written_, read_, there_;
  std::vector<Transfer> moving_;
  std::uint64_t seed_ = 100;
};

TEST_F(HostCuts, OfSecondsLoseNothing) {
  const Duration lasts = std::getenv("LINKSPAN_LONG") != nullptr ? 5s : 2s;
  start(0, kCount / 2);
  network().cut();
  start(kCount / 2, kCount);
  move_beside();
  EXPECT_EQ(moving_.back().wait(lasts).code(), Code::pending) << "the cable is cut";
  move_beside();
  network().mend();
  for (const Transfer& each : moving_) EXPECT_EQ(finished(each).to_string(), "ok");
  EXPECT_EQ(out().difference(1), "");
  EXPECT_EQ(in().difference(2, {{0, 4, 0, kBytes}}), "");
  EXPECT_EQ(far().difference("written", 3, {{0, 1, 0, kBytes}}), "");
  EXPECT_EQ(far().difference("read", 4), "");
}

TEST_F(HostCuts, ForEverEndTransfersByTheirDeadlineAndNothingLandsLater) {
  // Writes alone: where bytes of a read come for a socket that is closed, its kernel resets it.
  start(0, kCount / 2, 100ms, {Op::write});
  network().cut();
  start(kCount / 2, kCount, 100ms, {Op::write});
  expect_to_end_badly();
  out().fill(5);
  in().fill(6);
  far().fill("written", 7);
  far().fill("read", 8);
  network().mend();
  expect_nothing_lands_here();
  EXPECT_EQ(far().difference("written", 7), "");
  EXPECT_EQ(far().difference("read", 8), "");
}

TEST_F(HostCuts, ForEverEndTransfersWithoutAnyDeadlineOfTheirs) {
  start(0, kCount / 2);
  network().cut();
  start(kCount / 2, kCount);
  expect_to_end_badly();
  EXPECT_TRUE(is_down(peer_, base::Deadline::after(base::Clock::steady(), 30s)));
  EXPECT_EQ(other_.state(), PeerState::up);
}

TEST_F(HostCuts, OfLongerThanAllLimitsAreMendedByMeetingAgain) {
  must(engine().publish("near", in().region));
  far().accept();
  start(0, kCount / 2);
  network().cut();
  start(kCount / 2, kCount);
  expect_to_end_badly();
  ASSERT_TRUE(is_down(peer_, base::Deadline::after(base::Clock::steady(), 30s)));
  auto meeting = std::async(std::launch::async, [&] { return hosts_->connect(far().address()); });
  move_beside();
  EXPECT_EQ(meeting.wait_for(1s), std::future_status::timeout) << "the cable is cut";
  network().mend();
  meet_again(meeting.get());
}

/// Nothing informs this side of the end there, nor the new process of the old connection.
TEST_F(HostCuts, AFarProcessThatRestartedBehindThemIsMetAtOnce) {
  must(engine().publish("near", in().region));
  start(0, kCount / 2, 2s);
  network().cut();
  start(kCount / 2, kCount, 2s);
  const std::string address = far().address();
  far().process().kill();
  hosts_->far = engine_at(network(), Host::far, {}, address);
  for (const char* name : {"written", "read"}) far().add(name, {.kind = "host", .bytes = kBytes});
  EXPECT_EQ(peer_.state(), PeerState::up) << "this test shows nothing";
  network().mend();
  const Peer peer = hosts_->connect(address);
  expect_to_end_badly();
  EXPECT_TRUE(is_down(peer_, base::Deadline::after(base::Clock::steady(), 15s)));
  meet_again(peer);
}

class HostCutsByOptions : public HostCuts {
 protected:
  HostCutsByOptions() { transport_ = {{"tcp.peer_timeout", "2"}, {"tcp.stall_timeout", "60"}}; }
};

TEST_F(HostCutsByOptions, EndAPeerThatCannotBeReachedAndNotOneThatIsStopped) {
  start(0, kCount / 2);
  far().process().signal(SIGSTOP);
  start(kCount / 2, kCount);
  EXPECT_EQ(moving_.back().wait(5s).code(), Code::pending);
  far().process().signal(SIGCONT);
  for (const Transfer& each : moving_) EXPECT_EQ(finished(each).to_string(), "ok");
  EXPECT_EQ(far().difference("written", 3, {{0, 1, 0, kBytes}}), "");
  network().cut();
  const base::Time begin = base::Clock::steady().now();
  start(0, kCount);
  expect_to_end_badly();
  EXPECT_LT(base::Clock::steady().now() - begin, 8s) << "a stall has longer";
}

TEST_F(HostCuts, AFarProcessThatStandsStillTakesNothing) {
  start(0, kCount / 2, 1s);
  far().process().signal(SIGSTOP);
  start(kCount / 2, kCount, 1s);
  expect_to_end_badly();
  out().fill(5);
  in().fill(6);
  far().process().signal(SIGCONT);
  expect_nothing_lands_here();
  EXPECT_EQ(other_.state(), PeerState::up);
}

/// The peer's kernel has accepted the requests, so TCP alone would wait for ever.
TEST_F(HostCuts, AFarProcessThatStandsStillIsNotWaitedForByReads) {
  far().process().signal(SIGSTOP);
  start(0, kCount, 100ms, {Op::read});
  expect_to_end_badly();
  in().fill(6);
  far().process().signal(SIGCONT);
  out().fill(5);
  expect_nothing_lands_here();
}

}  // namespace cuts_test
}  // namespace linkspan::test
