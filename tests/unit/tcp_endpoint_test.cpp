// Tests the connections that an Endpoint over TCP requests, and its reaction if they cannot be
// made.
#include <utility>

#include "tests/support/no_memory.hpp"
#include "tests/unit/tcp_connection_group_fixture.hpp"

namespace linkspan::transport::tcp {
namespace tcp_endpoint_test {

/// The channel of the connecting side.
class AskedChannel final : public PeerChannel {
 public:
  bool connects() const noexcept override { return true; }
  Status open_data_connection() override { return ++asked, Status(); }

  unsigned asked = 0;
};

struct Asking {
  Asking(unsigned ours, unsigned theirs, unsigned first) {
    transport = std::make_unique<TcpTransport>(
        TcpOptions{.incarnation = kUs, .connections = ours, .first = first, .clock = &clock});
    endpoint = take(
        transport->connect(encode(TcpTransportAddress{
                               .incarnation = kPeer, .connections = theirs, .chunk = kMinChunk}),
                           channel, base::Deadline::after(clock, 10s)));
  }
  Status comes(Result<base::AuthenticatedSocket> socket) const {
    return endpoint->on_data_connection(std::move(socket));
  }
  /// Returns the reason why it takes no batch, or that the region of this one is another peer's.
  Status refusal() const {
    return endpoint
        ->post({.op = linkspan::Op::write, .remote = &strange, .shape = std::span<const Block>()})
        .status();
  }

  /// Lets the time pass in steps of a tenth of a second.
  void passes(Duration time) {
    for (Duration step = 0ns; step < time; step += 100ms) {
      clock.advance(100ms);
      endpoint->progress(ends);
    }
  }
  /// Returns the time until its next poll.
  Duration poll_hint() const {
    const PollHint look = endpoint->poll_hint();
    EXPECT_EQ(look.when, PollHint::When::at);
    return look.at - clock.now();
  }

  base::FakeClock clock;
  Ends ends;
  AskedChannel channel;
  std::unique_ptr<TcpTransport> transport;
  std::unique_ptr<Endpoint> endpoint;
  WireMapping strange{WireKey{.id = {.incarnation = kPeer + 1, .buffer = 1, .serial = 1},
                              .peers = {.read = true, .write = true},
                              .bytes = kBytes}};
};

Status refused() { return {Code::unreachable, Scope::peer, "nobody listens there"}; }

TEST(TcpEndpoint, BeginsWithAFewConnections) {
  for (const auto& [ours, theirs, first, asked] :
       {std::tuple(8u, 8u, 2u, 2u), {1u, 8u, 2u, 1u}, {8u, 1u, 2u, 1u}, {3u, 8u, 9u, 3u}}) {
    const Asking asking(ours, theirs, first);
    EXPECT_EQ(asking.channel.asked, asked);
    EXPECT_EQ(asking.endpoint->describe_paths(),
              "up to " + std::to_string(std::min(ours, theirs)) + " TCP data connections");
  }
}

Status full() { return {Code::no_resource, Scope::peer, "256 handshakes are under way there"}; }
base::AuthenticatedSocket one() {
  auto [ours, theirs] = test::tcp_pair();
  static std::vector<base::Fd> open;
  open.push_back(std::move(theirs));
  return {std::move(ours), {}};
}

TEST(TcpEndpoint, IsFineWithFewerThanItHasAskedFor) {
  Asking asking(8, 8, 2);
  EXPECT_TRUE(asking.comes(refused()).ok());
  EXPECT_EQ(asking.refusal().code(), Code::invalid_argument);
  EXPECT_TRUE(asking.comes(one()).ok());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(asking.comes(refused()).ok());
  EXPECT_EQ(asking.refusal().code(), Code::invalid_argument);
  EXPECT_EQ(asking.channel.asked, 2u) << "it does not ask again at once";
}

TEST(TcpEndpoint, AsksAgainForAConnectionThatWasRefused) {
  Asking asking(8, 8, 2);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(asking.comes(full()).ok());
  EXPECT_EQ(asking.channel.asked, 2u);
  EXPECT_LE(asking.poll_hint(), DataConnector::kFirstPause);
  asking.passes(1s);
  EXPECT_EQ(asking.channel.asked, 4u) << "both, once";
  EXPECT_TRUE(asking.comes(one()).ok());
  EXPECT_TRUE(asking.comes(full()).ok());
  asking.passes(1s);
  EXPECT_EQ(asking.channel.asked, 5u) << "the one that is missing";
  EXPECT_TRUE(asking.comes(one()).ok());
  asking.passes(1min);
  EXPECT_EQ(asking.channel.asked, 5u);
  EXPECT_TRUE(asking.channel.given_up.ok());
}

/// The refusal of each try takes no time.
TEST(TcpEndpoint, AsksEverMoreRarelyAndNotForEver) {
  Asking asking(8, 8, 2);
  EXPECT_TRUE(asking.comes(one()).ok());
  unsigned asked = 1;
  for (int i = 0; i < 3000; ++i) {
    for (; asked < asking.channel.asked; ++asked) EXPECT_TRUE(asking.comes(full()).ok());
    asking.passes(100ms);
  }
  EXPECT_EQ(asking.channel.asked, 2 + DataConnector::kTries);
  EXPECT_EQ(asking.refusal().code(), Code::invalid_argument) << "it works with one";
  EXPECT_TRUE(asking.channel.given_up.ok());
}

TEST(TcpEndpoint, DropsAPeerThatStaysWithoutAConnection) {
  Asking asking(8, 8, 2);
  unsigned asked = 0;
  for (int i = 0; i < 98; ++i) {
    for (; asked < asking.channel.asked; ++asked) EXPECT_TRUE(asking.comes(full()).ok());
    EXPECT_EQ(asking.refusal().code(), Code::invalid_argument) << "it waits for one";
    asking.passes(100ms);
  }
  EXPECT_LE(asked, 20u);
  EXPECT_TRUE(asking.channel.given_up.ok());
  asking.passes(3s);
  EXPECT_EQ(asking.refusal().code(), Code::timed_out);
  EXPECT_EQ(asking.channel.given_up.code(), Code::timed_out);
  EXPECT_NE(asking.channel.given_up.what().find("256 handshakes"), std::string::npos)
      << asking.channel.given_up.what();
}

/// The Engine's close() waits until its endpoints are idle.
/// It would stay up without carrying data until somebody polls it for another reason.
TEST(TcpEndpoint, AsksToBePolled_UntilItDropsAPeerWhoseConnectionsFailed) {
  Asking asking(8, 8, 2);
  const Status denied(Code::permission_denied, Scope::peer, "no");
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(asking.comes(denied).ok());
  EXPECT_EQ(asking.refusal().code(), Code::permission_denied);
  EXPECT_EQ(asking.endpoint->poll_hint().when, PollHint::When::now);
  asking.endpoint->progress(asking.ends);
  const Duration left = asking.poll_hint();
  EXPECT_GT(left, 0s);
  asking.clock.advance(left);
  asking.endpoint->progress(asking.ends);
  EXPECT_EQ(asking.channel.given_up.code(), Code::permission_denied);
  EXPECT_EQ(asking.endpoint->poll_hint().when, PollHint::When::idle);
}

TEST(TcpEndpoint, HoldsUpNoCloseWhereConnectionsAreMissing) {
  Asking asking(8, 8, 2);
  EXPECT_TRUE(asking.comes(full()).ok());
  asking.endpoint->stop_serving();
  EXPECT_EQ(asking.endpoint->poll_hint().when, PollHint::When::idle);
}

TEST(TcpEndpoint, TellsWhyNoneCouldBeMade) {
  Asking asking(8, 8, 2);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(asking.comes(refused()).ok());
  asking.passes(12s);
  EXPECT_EQ(asking.refusal().code(), Code::unreachable);
  EXPECT_NE(asking.refusal().what().find("nobody listens there"), std::string::npos);
}

TEST(TcpEndpoint, FailsAtOnceWhereItIsNotPermitted) {
  const Asking asking(8, 8, 2);
  for (int i = 0; i < 2; ++i)
    EXPECT_TRUE(asking.comes(Status(Code::permission_denied, Scope::peer, "another secret")).ok());
  EXPECT_EQ(asking.refusal().code(), Code::permission_denied);
  EXPECT_EQ(asking.channel.asked, 2u);
}

/// The TransferScheduler takes these codes for back-pressure and would wait for ever.
TEST_F(TcpConnectionGroup, NeverFailsWithACodeThatMeansLater) {
  for (const Code code : {Code::ok, Code::no_resource, Code::pending, Code::busy}) {
    ConnectionGroup group({.published = &transport_.published(), .channel = &channel_});
    group.fail(Status(code, Scope::peer, "why"));
    ASSERT_TRUE(group.failure().has_value());
    EXPECT_EQ(group.failure()->code(), Code::disconnected);
  }
}

/// The peer has not noticed it.
TEST_F(TcpConnectionGroup, ACanceledBatchEndsAtOnceWhereNoConnectionHasCome) {
  for (const linkspan::Op op : {linkspan::Op::write, linkspan::Op::read}) {
    auto lonely = take(transport_.connect(
        encode(TcpTransportAddress{.incarnation = kPeer, .connections = 1, .chunk = kMinChunk}),
        channel_, base::Deadline::after(base::Clock::steady(), 1min)));
    const Block block{0, 0, 100};
    must(lonely
             ->post({.op = op,
                     .local = &region_->region(),
                     .remote = remote_.get(),
                     .shape = std::span(&block, 1),
                     .cookie = ++cookies_})
             .status());
    lonely->progress(ends_);
    EXPECT_FALSE(ends_.all.contains(cookies_));
    lonely->cancel(cookies_);
    lonely->progress(ends_);
    ASSERT_TRUE(ends_.all.contains(cookies_));
    EXPECT_EQ(ends_.all[cookies_].code(), Code::canceled);
    lonely->peer_terminated();
  }
}

/// A post() that throws has begun nothing; one that does not tells its end.
TEST_F(TcpConnectionGroup, BeginsABatchOrNone_WhenMemoryEnds) {
  const Block block{0, 0, 100};
  for (const auto& [op, connected] : {std::pair(linkspan::Op::write, false),
                                      {linkspan::Op::write, true},
                                      {linkspan::Op::read, false},
                                      {linkspan::Op::read, true}}) {
    std::shared_ptr<const memory::Registration> region;
    std::unique_ptr<Endpoint> endpoint;
    base::Fd peers_end;
    const auto begin = [&, with_stream = connected] {
      region = take(registry_.add(memory_.data(), kBytes, {.read = true, .write = true}, false));
      must(transport_.publish(region->region()).status());
      endpoint = take(transport_.connect(
          encode(TcpTransportAddress{.incarnation = kPeer, .connections = 1, .chunk = kMinChunk}),
          channel_, base::Deadline::after(base::Clock::steady(), 1min)));
      if (!with_stream) return;
      auto [ours, theirs] = test::tcp_pair();
      peers_end = std::move(theirs);
      must(endpoint->on_data_connection(base::AuthenticatedSocket{std::move(ours), keys_}));
    };
    begin();
    test::fail_each_allocation(
        [&, op = op] {
          must(endpoint
                   ->post({.op = op,
                           .local = &region->region(),
                           .remote = remote_.get(),
                           .shape = std::span(&block, 1),
                           .cookie = ++cookies_})
                   .status());
        },
        [&](bool threw) {
          EXPECT_EQ(transport_.retract(region->region(), false).code(),
                    threw ? Code::ok : Code::busy);
          endpoint->peer_terminated();
          const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
          while (!endpoint->drained() && !limit.passed()) endpoint->progress(ends_);
          EXPECT_TRUE(endpoint->drained());
          endpoint->progress(ends_);
          EXPECT_EQ(ends_.all.contains(cookies_), !threw);
          if (!threw) must(transport_.retract(region->region(), false));
          begin();
        });
    endpoint->peer_terminated();
    const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
    while (!endpoint->drained() && !limit.passed()) endpoint->progress(ends_);
  }
}

}  // namespace tcp_endpoint_test
}  // namespace linkspan::transport::tcp
