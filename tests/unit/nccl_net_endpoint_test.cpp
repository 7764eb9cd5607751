// Tests a NcclNetEndpoint against a peer that the test simulates, message by message.
#include "transport/nccl_net/endpoint.hpp"

#include <deque>
#include <map>

#include "base/schema/nccl_net_generated.h"
#include "memory/registry.hpp"
#include "tests/support/no_memory.hpp"
#include "tests/unit/nccl_net_fixture.hpp"

namespace linkspan::transport::nccl_net {
namespace nccl_net_endpoint_test {

using namespace std::chrono_literals;

constexpr std::uint64_t kUs = 11, kPeer = 77;

class RecordingChannel final : public Channel {
 public:
  Status send(std::uint16_t op, std::span<const std::byte> bytes, std::span<base::Fd>) override {
    if (full) return Status::no_resource();
    sent.push_back({static_cast<MessageType>(op), {bytes.begin(), bytes.end()}});
    return {};
  }
  SessionKey session_key() const noexcept override { return key_; }
  PeerProcess process() const noexcept override {
    return {.pid = 0, .pidfd = -1, .same_user = true, .incarnation = kPeer};
  }
  std::string_view peer_name() const noexcept override { return "hostile"; }
  void deliver_notification(std::vector<std::byte>, std::uint64_t) override {}
  bool connects() const noexcept override { return false; }
  Status open_data_connection() override {
    return {Code::unsupported, Scope::peer, "no streams here"};
  }
  void fail_peer(const Status& why) override { given_up = why; }

  struct Sent {
    MessageType message;
    Bytes bytes;
  };
  std::deque<Sent> sent;
  bool full = false;
  Status given_up;

 private:
  std::array<std::byte, 32> key_{};
};

class Ends final : public CompletionSink {
 public:
  void complete(Completion&& end) override { all.emplace(end.cookie, std::move(end.status)); }

  std::map<std::uint64_t, Status> all;
};

class NcclNetEndpointTest : public ::testing::Test {
 protected:
  void begin(const char* failure = "") {
    ::setenv("LINKSPAN_TEST_PLUGIN_FAIL", failure, 1);
    transport_ = take(NcclNetTransport::create(
        {.plugin = take(Plugin::load({plugin_file(12)}, Lines::all().log())),
         .incarnation = kUs,
         .clock = &clock_}));
    region_ = take(registry_.add(memory_.data(), memory_.size(), {true, true}, false));
    key_ = take(decode_key(take(transport_->publish(region_->region())).bytes));
    const NcclNetAddress peer{.incarnation = kPeer, .max_message = 4096, .plugin = "hostile"};
    endpoint_ = take(transport_->connect(encode(peer), channel_,
                                         base::Deadline::after(base::Clock::steady(), 10s)));
  }
  void TearDown() override {
    ::unsetenv("LINKSPAN_TEST_PLUGIN_FAIL");
    if (endpoint_ != nullptr) endpoint_->close();
  }
  Status post(Op op, const Mapping& remote) {
    const Block block{0, 0, 16};
    return endpoint_
        ->post({.op = op,
                .local = &region_->region(),
                .remote = &remote,
                .shape = std::span(&block, 1),
                .cookie = kCookie})
        .status();
  }
  /// Lets the time pass. The TransferScheduler polls each second.
  void passes(Duration time) {
    for (; time > Duration::zero(); time -= 1s) {
      clock_.advance(1s);
      endpoint_->progress(ends_);
    }
  }
  Code retract(bool at_once = false) {
    return transport_->retract(region_->region(), at_once).code();
  }
  /// Waits until the peer has received the answer to `id`, and returns its code.
  Code answer(std::uint64_t id) {
    Code code = Code::pending;
    until([&] {
      endpoint_->progress(ends_);
      for (const auto& each : channel_.sent)
        if (const auto* end = verified<schema::NetEnded>(each.bytes);
            each.message == MessageType::ended && end != nullptr && end->id() == id)
          code = static_cast<Code>(end->code());
      return code != Code::pending;
    });
    return code;
  }

  Status write(std::uint64_t id, const Token& token) {
    flatbuffers::FlatBufferBuilder out;
    const schema::WireSpan block(0, 16);
    const auto bytes = schema::vector_of(out, token), gpu = schema::vector_of(out, GpuUuid{});
    const auto blocks = out.CreateVectorOfStructs(&block, 1);
    out.Finish(schema::CreateNetWrite(out, id, key_.id.serial, bytes, gpu, blocks));
    return endpoint_->on_message(static_cast<std::uint16_t>(MessageType::write), finished(out), {});
  }
  std::size_t count(MessageType message) const {
    return static_cast<std::size_t>(
        std::count_if(channel_.sent.begin(), channel_.sent.end(),
                      [message](const auto& each) { return each.message == message; }));
  }
  /// Returns the flow of the last `clear`.
  std::uint32_t flow() const {
    std::uint32_t found = 0;
    for (const auto& each : channel_.sent)
      if (each.message == MessageType::clear)
        found = verified<schema::NetClear>(each.bytes)->flow();
    return found;
  }

  static constexpr std::uint64_t kCookie = 9;

  base::FakeClock clock_;
  Bytes memory_ = Bytes(4096, std::byte{1});
  std::shared_ptr<const memory::Registration> region_;
  memory::Registry registry_{kUs, nullptr};
  std::unique_ptr<Transport> transport_;
  RecordingChannel channel_;
  WireKey key_;
  Ends ends_;
  std::unique_ptr<Endpoint> endpoint_;
};

TEST_F(NcclNetEndpointTest, WhoTakesNothingIsToldABoundedAmount) {
  begin();
  channel_.full = true;
  // and one that was answered
  const std::uint64_t most = transport_->capabilities().max_inflight + 1;
  for (std::uint64_t id = 1; id <= most; ++id) {
    ASSERT_TRUE(write(id, {}).ok()) << id;
    endpoint_->progress(ends_);
  }
  EXPECT_EQ(write(most + 1, {}).code(), Code::corrupt);
  EXPECT_EQ(endpoint_->poll_hint().when, PollHint::When::at) << "nothing is to be done at once";
  channel_.full = false;
  endpoint_->progress(ends_);
  EXPECT_EQ(count(MessageType::ended), most);
  EXPECT_TRUE(write(most + 1, {}).ok());
}

/// A post() that fails has begun nothing; one that does not asks the peer once.
TEST_F(NcclNetEndpointTest, BeginsABatchOrNone_WhenMemoryEnds) {
  begin();
  const WireMapping remote({.id = {.incarnation = kPeer, .buffer = 1, .serial = 1},
                            .peers = {.read = true, .write = true},
                            .bytes = 4096});
  for (const auto& [op, message] :
       {std::pair(Op::write, MessageType::write), {Op::read, MessageType::read}}) {
    std::size_t begun = 0;
    test::fail_each_allocation([&, op = op] { begun += post(op, remote).ok() ? 1 : 0; },
                               [&, message = message](bool) {
                                 endpoint_->progress(ends_);
                                 EXPECT_EQ(count(message), begun);
                               });
  }
  EXPECT_TRUE(ends_.all.empty());
  endpoint_->peer_terminated();
  until([&] { return endpoint_->progress(ends_), endpoint_->drained(); });
  EXPECT_EQ(ends_.all.size(), 1u) << "both have one cookie";
  // What ended between progress() and drained() still uses its region.
  until([&] { return endpoint_->progress(ends_), retract() == Code::ok; });
}

TEST_F(NcclNetEndpointTest, ABrokenFlowCarriesNothingMore) {
  begin("listen:0:2");
  ASSERT_TRUE(write(1, key_.token).ok());
  const std::uint32_t first = flow();
  // The order has ended, which is to be reported and was not yet.
  until([&] { return endpoint_->poll_hint().when == PollHint::When::now; });
  ASSERT_TRUE(write(2, key_.token).ok());
  EXPECT_NE(flow(), first);
  until([&] {
    endpoint_->progress(ends_);
    return count(MessageType::ended) == 2;
  });
  // The broken flow is reported before the writes that it ended.
  const auto place = [&](MessageType message) {
    return std::find_if(channel_.sent.begin(), channel_.sent.end(),
                        [message](const auto& each) { return each.message == message; });
  };
  EXPECT_LT(place(MessageType::broken), place(MessageType::ended));
}

/// No further byte reaches the memory, because the flow that could bring it has no comm.
TEST_F(NcclNetEndpointTest, EndsAWriteOfThePeersThatDoesNotGoOn) {
  begin();
  ASSERT_TRUE(write(1, key_.token).ok());
  passes(NcclNetEndpoint::kMaxStall - 1s);
  ASSERT_EQ(endpoint_->served().size(), 1u);
  EXPECT_EQ(endpoint_->served()[0].serial, key_.id.serial);
  EXPECT_EQ(endpoint_->served()[0].op, Op::write);
  EXPECT_GE(endpoint_->served()[0].still, NcclNetEndpoint::kMaxStall - 5s);
  passes(3s);
  EXPECT_EQ(answer(1), Code::timed_out);
  EXPECT_TRUE(endpoint_->served().empty());
  EXPECT_EQ(retract(), Code::ok);
}

TEST_F(NcclNetEndpointTest, EndsSoonerWhatDoesNotGoOn_WhereItsRegionIsDeregistered) {
  for (const bool at_once : {false, true}) {
    SCOPED_TRACE(at_once ? "invalidated" : "deregistered");
    begin();
    ASSERT_TRUE(write(1, key_.token).ok());
    const std::uint32_t broken = flow();
    passes(1s);
    EXPECT_EQ(retract(at_once), Code::busy);
    if (!at_once) {
      passes(NcclNetEndpoint::kMaxStallRetracted - 2s);
      EXPECT_EQ(endpoint_->served().size(), 1u);
    }
    passes(5s);
    EXPECT_EQ(answer(1), Code::unreachable);
    until([&] { return retract(at_once) == Code::ok; });
    const auto other = take(registry_.add(memory_.data(), memory_.size(), {true, true}, false));
    key_ = take(decode_key(take(transport_->publish(other->region())).bytes));
    ASSERT_TRUE(write(2, key_.token).ok());
    EXPECT_NE(flow(), broken) << "the next one takes another";
    endpoint_->close();
    endpoint_ = nullptr;
    channel_.sent.clear();
  }
}

/// Other things that the peer says do not make it longer.
TEST_F(NcclNetEndpointTest, GivesAPeerUp_ThatDoesNotEndACanceledTransfer) {
  for (const Op op : {Op::write, Op::read}) {
    begin();
    const WireMapping remote({.id = {.incarnation = kPeer, .buffer = 1, .serial = 1},
                              .peers = {.read = true, .write = true},
                              .bytes = 4096});
    ASSERT_TRUE(post(op, remote).ok());
    endpoint_->cancel(kCookie);
    std::uint64_t id = 0;
    for (int second = 0; second < 9; ++second) {
      ASSERT_TRUE(write(++id, {}).ok());
      passes(1s);
    }
    EXPECT_EQ(ends_.all.count(kCookie), 0u);
    EXPECT_EQ(endpoint_->poll_hint().when, PollHint::When::at);
    passes(3s);
    until([&] { return endpoint_->progress(ends_), ends_.all.contains(kCookie); });
    EXPECT_EQ(ends_.all.at(kCookie).code(), Code::disconnected);
    EXPECT_EQ(channel_.given_up.code(), Code::disconnected) << channel_.given_up.to_string();
    EXPECT_TRUE(write(++id, key_.token).ok()) << "what it says until it is lost is not heard";
    EXPECT_EQ(post(op, remote).code(), Code::disconnected);
    endpoint_ = nullptr;
    ends_.all.clear();
    channel_.given_up = {};
  }
}

TEST_F(NcclNetEndpointTest, ABrokenFlowDoesNotListen) {
  begin("accept:0:2");
  ASSERT_TRUE(write(1, key_.token).ok());
  until([&] { return endpoint_->poll_hint().when == PollHint::When::now; });
  endpoint_->progress(ends_);
  EXPECT_EQ(count(MessageType::broken), 1u);
  EXPECT_EQ(count(MessageType::listening), 0u);
  EXPECT_EQ(count(MessageType::ended), 1u);
}

}  // namespace nccl_net_endpoint_test
}  // namespace linkspan::transport::nccl_net
