// Tests PeerEndpoints: calls reach each Endpoint, and what they answer for all of them.
#include "engine/peers/peer_endpoints.hpp"

#include <map>
#include <new>

#include "tests/unit/engine_fixture.hpp"

namespace linkspan::engine {
namespace peer_endpoints_test {

using namespace std::chrono_literals;
using When = transport::PollHint::When;

/// Keeps the Completions by cookie.
class Sink final : public transport::CompletionSink {
 public:
  void complete(transport::Completion&& completion) override {
    if (std::exchange(no_memory, false)) throw std::bad_alloc();
    done[completion.cookie] = completion.status;
  }
  std::map<std::uint64_t, Status> done;
  bool no_memory = false;  // the next Completion finds none
};

/// A peer that has the first and the last of three transports.
class PeerEndpointsTest : public ::testing::Test {
 protected:
  PeerEndpointsTest() : first_(add(0)), last_(add(2)) {}
  test::FakeEndpoint& add(std::size_t transport) {
    auto made = std::make_unique<test::FakeEndpoint>(calls_);
    auto& endpoint = *made;
    endpoints_.add(transport, nullptr, std::move(made));
    return endpoint;
  }
  static void post(test::FakeEndpoint& endpoint, std::uint64_t cookie) {
    test::must(endpoint.post({.shape = std::span<const Block>(), .cookie = cookie}).status());
    endpoint.complete(cookie);
  }

  test::EndpointCalls calls_;
  PeerEndpoints endpoints_{3};
  test::FakeEndpoint &first_, &last_;
};

TEST_F(PeerEndpointsTest, FindsAnEndpointByItsTransport) {
  EXPECT_EQ(endpoints_.at(0), &first_);
  EXPECT_EQ(endpoints_.at(1), nullptr) << "the peer lacks it";
  EXPECT_EQ(endpoints_.at(2), &last_);
  std::vector<std::size_t> indices;
  endpoints_.for_each([&](std::size_t i, transport::Endpoint&) { indices.push_back(i); });
  EXPECT_EQ(indices, (std::vector<std::size_t>{0, 2}));
}

TEST_F(PeerEndpointsTest, MakesProgressWithEach) {
  post(first_, 1);
  post(last_, 2);
  Sink sink;
  endpoints_.progress(sink);
  EXPECT_EQ(sink.done.size(), 2u);
}

TEST_F(PeerEndpointsTest, MakesProgressWithTheOthers_WhenOneHasNoMemory) {
  post(first_, 1);
  post(last_, 2);
  Sink sink;
  sink.no_memory = true;
  endpoints_.progress(sink);
  EXPECT_TRUE(sink.done.contains(2));
}

TEST_F(PeerEndpointsTest, ReturnTheEarliestHint) {
  EXPECT_TRUE(endpoints_.idle());
  const base::Time begin = base::Clock::steady().now();
  first_.set_hint({.when = When::at, .at = begin + 2h});
  last_.set_hint({.when = When::at, .at = begin + 1h});
  EXPECT_EQ(endpoints_.poll_hint().at, begin + 1h);
  first_.set_hint({.when = When::now, .at = {}, .for_peer = true});
  EXPECT_EQ(endpoints_.poll_hint().when, When::now);
  EXPECT_TRUE(endpoints_.poll_hint().for_peer);
  EXPECT_FALSE(endpoints_.idle());
}

TEST_F(PeerEndpointsTest, StopAndCloseEach) {
  endpoints_.stop_serving();
  EXPECT_TRUE(first_.stopped_serving() && last_.stopped_serving());
  EXPECT_FALSE(first_.closed() || last_.closed());
  endpoints_.close();
  EXPECT_TRUE(first_.closed() && last_.closed());
}

TEST_F(PeerEndpointsTest, EndThePeerForEach_AndAreDrainedWhenAllAre) {
  test::must(first_.post({.shape = std::span<const Block>(), .cookie = 1}).status());
  test::must(last_.post({.shape = std::span<const Block>(), .cookie = 2}).status());
  last_.set_drained(false);
  endpoints_.peer_terminated();
  Sink sink;
  endpoints_.progress(sink);
  EXPECT_EQ(sink.done[1].code(), Code::disconnected);
  EXPECT_EQ(sink.done[2].code(), Code::disconnected);
  EXPECT_FALSE(endpoints_.drained());
  last_.set_drained(true);
  EXPECT_TRUE(endpoints_.drained());
}

TEST_F(PeerEndpointsTest, ListWhatThePeerDoesOnAllOfThem) {
  first_.set_served({{.serial = 1}});
  last_.set_served({{.serial = 2}, {.serial = 3}});
  std::vector<std::uint64_t> serials;
  for (const auto& each : endpoints_.served()) serials.push_back(each.serial);
  EXPECT_EQ(serials, (std::vector<std::uint64_t>{1, 2, 3}));
}

}  // namespace peer_endpoints_test
}  // namespace linkspan::engine
