// The streams that an Endpoint by TCP asks for, and what it makes of those that cannot be made.
#include <utility>

#include "tests/unit/tcp_wire_fixture.hpp"

namespace linkspan::transport::tcp {
namespace tcp_endpoint_test {

/// Of the side that has connected.
class AskedChannel final : public PeerChannel {
 public:
  bool connects() const noexcept override { return true; }
  Status open_stream() override { return ++asked, Status(); }

  unsigned asked = 0;
};

struct Asking {
  Asking(unsigned ours, unsigned theirs, unsigned first) {
    transport = std::make_unique<TcpTransport>(
        TcpOptions{.incarnation = kUs, .streams = ours, .first = first});
    endpoint = take(transport->connect(
        encode(Address{.incarnation = kPeer, .streams = theirs, .chunk = kLeastChunk}), channel,
        base::Deadline::after(base::Clock::steady(), 10s)));
  }
  Status comes(Result<base::SealedSocket> socket) const {
    return dynamic_cast<StreamTaker&>(*endpoint).on_stream(std::move(socket));
  }
  /// Why it takes no batch, or that the region of this one is another peer's.
  Status refusal() const {
    return endpoint->post(
        {.op = linkspan::Op::write, .remote = &strange, .shape = std::span<const Block>()});
  }

  AskedChannel channel;
  std::unique_ptr<TcpTransport> transport;
  std::unique_ptr<Endpoint> endpoint;
  WireMapping strange{WireKey{.id = {.incarnation = kPeer + 1, .buffer = 1, .serial = 1},
                              .peers = {.read = true, .write = true},
                              .bytes = kBytes}};
};

Status refused() { return {Code::unreachable, Scope::peer, "nobody listens there"}; }

TEST(TcpEndpoint, BeginsWithAFewStreams) {
  for (const auto& [ours, theirs, first, asked] :
       {std::tuple(8u, 8u, 2u, 2u), {1u, 8u, 2u, 1u}, {8u, 1u, 2u, 1u}, {3u, 8u, 9u, 3u}}) {
    const Asking asking(ours, theirs, first);
    EXPECT_EQ(asking.channel.asked, asked);
    EXPECT_EQ(asking.endpoint->outlook(),
              "up to " + std::to_string(std::min(ours, theirs)) + " TCP streams");
  }
}

TEST(TcpEndpoint, IsFineWithFewerThanItHasAskedFor) {
  const Asking asking(8, 8, 2);
  EXPECT_TRUE(asking.comes(refused()).ok());
  EXPECT_EQ(asking.refusal().code(), Code::invalid_argument);
  auto [ours, theirs] = test::tcp_pair();
  EXPECT_TRUE(asking.comes(base::SealedSocket{std::move(ours), {}}).ok());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(asking.comes(refused()).ok());
  EXPECT_EQ(asking.refusal().code(), Code::invalid_argument);
  EXPECT_EQ(asking.channel.asked, 2u) << "it does not ask again at once";
}

TEST(TcpEndpoint, FailsWhenNoneCanBeMade) {
  const Asking asking(8, 8, 2);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(asking.comes(refused()).ok());
  EXPECT_EQ(asking.refusal().code(), Code::unreachable);
  EXPECT_EQ(asking.channel.asked, 2u);
}

}  // namespace tcp_endpoint_test
}  // namespace linkspan::transport::tcp
