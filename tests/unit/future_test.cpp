// Tests the calls that return at once, between Engines of one process.
#include "linkspan/future.hpp"

#include <poll.h>

#include <vector>

#include "engine/calls/call_queue.hpp"
#include "linkspan/completion_queue.hpp"
#include "tests/unit/engine_pair.hpp"

namespace linkspan {
namespace future_test {

using namespace std::chrono_literals;
using engine::CallQueue;
using test::contains, test::is, test::must, test::RawPeer, test::take;

using Cookies = std::vector<std::uint64_t>;

/// Returns the next cookies, using poll(2) only.
Cookies told(CompletionQueue& queue) {
  pollfd bell{.fd = queue.fd(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&bell, 1, 10'000), 1);
  return queue.take();
}

class FutureTest : public test::EnginePair {
 protected:
  /// Starts a connect to a socket that does not exist, which is retried until the timeout.
  Future<Peer> connect_to_nobody(Engine& engine, std::size_t number = 0) {
    return engine.connect_async("unix:/nonexistent/" + std::to_string(number), {.timeout = 1h});
  }
  /// Uses every thread for connects, and one more call.
  std::vector<Future<Peer>> block_connects() {
    std::vector<Future<Peer>> all;
    for (std::size_t i = 0; i <= CallQueue::kMaxThreads; ++i)
      all.push_back(connect_to_nobody(near_, i));
    return all;
  }
  static bool any_done(const std::vector<Future<Peer>>& all) {
    return std::ranges::any_of(all, [](const auto& each) { return each.done(); });
  }
};

TEST_F(FutureTest, RefersToNoCall_WhenItIsDefault) {
  const Future<Peer> none;
  EXPECT_TRUE(none.done());
  EXPECT_TRUE(is(none.wait(0s).status(), Code::invalid_argument, "no call"));
  none.cancel();
  auto queue = take(CompletionQueue::create());
  EXPECT_TRUE(is(queue.add(none, 1), Code::invalid_argument, "no call"));
  CompletionQueue no_queue;
  EXPECT_TRUE(is(no_queue.add(near_.connect_async(far_.address()), 1), Code::invalid_argument,
                 "no completion queue"));
  EXPECT_TRUE(is(Peer().lookup_async("kv").wait(0s).status(), Code::invalid_argument,
                 "the handle names no Engine and no peer"));
}

TEST_F(FutureTest, ConnectsAndLooksUp_FromOneEventLoop) {
  const Region region = take(far_.allocate_shared(4096));
  must(far_.publish("kv", region));
  auto queue = take(CompletionQueue::create());
  const Future<Peer> met = near_.connect_async(far_.address());
  EXPECT_TRUE(is(queue.add(met, 7), Code::ok));
  EXPECT_EQ(told(queue), Cookies{7});
  ASSERT_TRUE(met.done());
  const Peer peer = take(met.wait(0s));
  EXPECT_EQ(peer.name(), "far");
  EXPECT_EQ(take(met.wait(0s)).id(), peer.id()) << "also repeatedly";
  const Future<RemoteRegion> found = peer.lookup_async("kv");
  EXPECT_TRUE(is(queue.add(found, 8), Code::ok));
  EXPECT_EQ(told(queue), Cookies{8});
  EXPECT_EQ(take(found.wait(0s)).bytes(), 4096u);
  EXPECT_TRUE(is(queue.add(found, 9), Code::invalid_argument,
                 "the future was added to a completion queue before"));
  const Future<RemoteRegion> again = peer.lookup_async("kv");
  EXPECT_TRUE(is(again.wait(10s).status(), Code::ok));
  EXPECT_TRUE(is(queue.add(again, 9), Code::ok)) << "it is done";
  EXPECT_EQ(queue.take(), Cookies{9});
}

TEST_F(FutureTest, LooksUpASet_WithWhatIsKnown) {
  const std::vector<Region> regions = {take(far_.allocate_shared(64)),
                                       take(far_.allocate_shared(128))};
  must(far_.publish("set", regions).status());
  const RegionSet first = take(to_far_.lookup_set_async("set").wait(10s));
  ASSERT_EQ(first.regions.size(), 2u);
  const RegionSet second = take(to_far_.lookup_set_async("set", 10s, first).wait(10s));
  EXPECT_EQ(second.version, first.version);
  EXPECT_EQ(second.regions[1].bytes(), 128u);
}

TEST_F(FutureTest, HasTheErrorsOfTheWaitingCall) {
  EXPECT_TRUE(is(near_.connect_async("tcp:127.0.0.1:0").wait(10s).status(), Code::invalid_argument,
                 "nobody is at port 0"));
  EXPECT_TRUE(is(near_.connect_async("unix:/nonexistent/x", {.timeout = 500ms}).wait(10s).status(),
                 Code::unreachable));
  EXPECT_TRUE(is(
      near_.connect_async(far_.address(), {.timeout = 10s, .expect = "another"}).wait(10s).status(),
      Code::permission_denied));
  EXPECT_TRUE(is(to_far_.lookup_async("nothing").wait(10s).status(), Code::not_found));
  EXPECT_TRUE(is(to_far_.lookup_async("").wait(10s).status(), Code::invalid_argument,
                 "a region's name has 1 to"));
  EXPECT_TRUE(is(to_far_.lookup_set_async("nothing").wait(10s).status(), Code::not_found));
  const Region other = take(far_.allocate_shared(64));
  EXPECT_TRUE(is(near_.deregister_async(other).wait(10s), Code::invalid_argument,
                 "the region is not registered in this Engine"));
  EXPECT_TRUE(is(near_.invalidate_async({}).wait(10s), Code::invalid_argument));
}

TEST_F(FutureTest, IsPending_WhileTheCallGoesOn) {
  const Future<Peer> met = connect_to_nobody(near_);
  EXPECT_TRUE(is(met.wait(1ms).status(), Code::pending, "the call goes on"));
  EXPECT_FALSE(met.done());
}

TEST_F(FutureTest, DelaysNoLookup_WhenConnectsFindNobody) {
  const auto all = block_connects();
  const auto [region, remote] = share("kv", 4096);
  EXPECT_TRUE(is(to_far_.lookup_async("kv").wait(10s).status(), Code::ok));
  EXPECT_FALSE(any_done(all));
}

TEST_F(FutureTest, DelaysNoLookup_WhenAnotherPeerDoesNotAnswer) {
  must(near_.listen());
  RawPeer silent(near_);
  std::vector<Future<RemoteRegion>> unanswered;
  for (std::size_t i = 0; i < 2 * CallQueue::kMaxThreads; ++i)
    unanswered.push_back(silent.peer().lookup_async("kv", 1h));
  const auto [region, remote] = share("kv", 4096);
  EXPECT_TRUE(is(to_far_.lookup_async("kv").wait(10s).status(), Code::ok));
  for (const auto& each : unanswered) EXPECT_FALSE(each.done());
  silent.leave();
  for (const auto& each : unanswered) EXPECT_TRUE(is(each.wait(10s).status(), Code::disconnected));
}

TEST_F(FutureTest, EndsManyAtOnce) {
  const auto [region, remote] = share("kv", 4096);
  auto queue = take(CompletionQueue::create());
  std::vector<Future<RemoteRegion>> all;
  for (std::uint64_t i = 0; i < 500; ++i) {
    all.push_back(to_far_.lookup_async("kv", 60s));
    must(queue.add(all.back(), i));
  }
  std::size_t count = 0;
  while (count < all.size()) {
    const Cookies some = told(queue);
    ASSERT_FALSE(some.empty()) << "after " << count;
    for (const std::uint64_t cookie : some)
      EXPECT_TRUE(is(all.at(cookie).wait(0s).status(), Code::ok));
    count += some.size();
  }
}

TEST_F(FutureTest, TimesOut_WhenItsDeadlinePassesInTheQueue) {
  const auto all = block_connects();
  const Future<Peer> late = near_.connect_async(far_.address(), {.timeout = 20ms});
  EXPECT_TRUE(is(late.wait(10s).status(), Code::timed_out, "connect to "));
  EXPECT_TRUE(contains(late.wait(0s).status().what(), "not begun"));
  EXPECT_FALSE(any_done(all));
}

TEST_F(FutureTest, IsRefused_WhenTooManyAreOutstanding) {
  std::vector<Future<Peer>> all;
  for (std::size_t i = 0; i < CallQueue::kMaxCalls; ++i) all.push_back(connect_to_nobody(near_));
  EXPECT_TRUE(is(connect_to_nobody(near_, 1).wait(0s).status(), Code::no_resource,
                 "1024 calls of its kind are outstanding"));
  EXPECT_FALSE(any_done(all));
}

TEST_F(FutureTest, EndsCanceled_WhenItIsCanceled) {
  const Future<Peer> met = connect_to_nobody(near_), next = connect_to_nobody(near_);
  met.cancel();
  EXPECT_TRUE(met.done());
  EXPECT_TRUE(is(met.wait(0s).status(), Code::canceled, "the call was canceled"));
  EXPECT_FALSE(next.done());
  const Future<Peer> other = near_.connect_async(far_.address());
  const Peer peer = take(other.wait(10s));
  other.cancel();
  EXPECT_TRUE(is(other.wait(0s).status(), Code::ok)) << "it was done";
  EXPECT_EQ(peer.state(), PeerState::up);
}

TEST_F(FutureTest, EndsCanceled_WhenTheEngineCloses) {
  auto [region, remote] = share("kv", 4096);
  auto queue = take(CompletionQueue::create());
  const auto all = block_connects();
  const Future<void> busy = far_.deregister_async(region, 1h);
  must(queue.add(all.front(), 3));
  EXPECT_TRUE(is(near_.close(10s), Code::ok));
  for (const auto& each : all)
    EXPECT_TRUE(is(each.wait(0s).status(), Code::canceled, "the Engine is closed"));
  EXPECT_EQ(queue.take(), Cookies{3});
  EXPECT_TRUE(is(near_.connect_async(far_.address()).wait(0s).status(), Code::canceled,
                 "the Engine is closed"));
  EXPECT_TRUE(is(to_far_.lookup_async("kv").wait(0s).status(), Code::canceled));
}

TEST_F(FutureTest, OutlivesTheEngine) {
  Future<Peer> met, connected;
  {
    Engine engine = take(Engine::open({.name = "short", .use_gpu = false}));
    connected = engine.connect_async(far_.address());
    EXPECT_TRUE(is(connected.wait(10s).status(), Code::ok));
    met = connect_to_nobody(engine);
  }
  EXPECT_TRUE(met.done());
  EXPECT_TRUE(is(met.wait(0s).status(), Code::canceled, "the Engine is closed"));
  EXPECT_EQ(take(connected.wait(0s)).state(), PeerState::gone);
}

TEST_F(FutureTest, DeregistersOnceNoPeerMapsTheRegion) {
  auto [region, remote] = share("kv", 4096);
  const Future<void> ends = far_.deregister_async(region, 1h);
  EXPECT_TRUE(is(to_far_.lookup("kv", 10s).status(), Code::not_found)) << "from the call on";
  EXPECT_TRUE(is(ends.wait(0s), Code::pending));
  remote = RemoteRegion();
  EXPECT_TRUE(is(ends.wait(10s), Code::ok));
}

TEST_F(FutureTest, AnswersBusy_WhenTheRegionIsStillMappedAtTheTimeout) {
  auto [region, remote] = share("kv", 4096);
  EXPECT_TRUE(is(far_.deregister_async(region, 500ms).wait(10s), Code::busy));
  remote = RemoteRegion();
  EXPECT_TRUE(is(far_.invalidate_async(region).wait(10s), Code::ok));
}

TEST_F(FutureTest, MayDeregisterAgain_WhenItWasCanceled) {
  auto [region, remote] = share("kv", 4096);
  const Future<void> first = far_.deregister_async(region, 1h);
  first.cancel();
  EXPECT_TRUE(is(first.wait(0s), Code::canceled));
  remote = RemoteRegion();
  const Status end = far_.deregister_async(region).wait(10s);
  // The first may have found the region free before it saw the cancel.
  EXPECT_TRUE(is(end, Code::ok) || is(end, Code::invalid_argument, "is not registered"));
}

}  // namespace future_test
}  // namespace linkspan
