// A NcclNetEndpoint whose peer is played by the test, message by message.
#include "transport/nccl_net/endpoint.hpp"

#include <deque>

#include "base/schema/nccl_net_generated.h"
#include "memory/registry.hpp"
#include "tests/unit/nccl_net_fixture.hpp"

namespace linkspan::transport::nccl_net {
namespace nccl_net_endpoint_test {

using namespace std::chrono_literals;

constexpr std::uint64_t kUs = 11, kPeer = 77;

class RecordingChannel final : public Channel {
 public:
  Status send(std::uint16_t op, std::span<const std::byte> bytes, std::span<base::Fd>) override {
    if (full) return Status::no_resource();
    sent.push_back({static_cast<Message>(op), {bytes.begin(), bytes.end()}});
    return {};
  }
  SessionKey session_key() const noexcept override { return key_; }
  PeerProcess process() const noexcept override {
    return {.pid = 0, .pidfd = -1, .same_user = true, .incarnation = kPeer};
  }
  std::string_view peer_name() const noexcept override { return "hostile"; }
  void notified(std::vector<std::byte>, std::uint64_t) override {}
  bool connects() const noexcept override { return false; }
  Status open_stream() override { return {Code::unsupported, Scope::peer, "no streams here"}; }
  void give_up(const Status&) override {}

  struct Sent {
    Message message;
    Bytes bytes;
  };
  std::deque<Sent> sent;
  bool full = false;

 private:
  std::array<std::byte, 32> key_{};
};

class Ends final : public CompletionSink {
 public:
  void complete(Completion&&) override { ADD_FAILURE() << "an end of nothing"; }
};

class NcclNetEndpointTest : public ::testing::Test {
 protected:
  void begin(const char* failure = "") {
    ::setenv("LINKSPAN_TEST_PLUGIN_FAIL", failure, 1);
    transport_ = take(NcclNetTransport::create(
        {.plugin = take(Plugin::load({plugin_file(12)}, Lines::all().log())), .incarnation = kUs}));
    const auto added = take(registry_.add(memory_.data(), memory_.size(), {true, true}, false));
    key_ = take(decode_key(take(transport_->publish(added->region())).bytes));
    const Address peer{.incarnation = kPeer, .most = 4096, .plugin = "hostile"};
    endpoint_ = take(transport_->connect(encode(peer), channel_,
                                         base::Deadline::after(base::Clock::steady(), 10s)));
  }
  void TearDown() override {
    ::unsetenv("LINKSPAN_TEST_PLUGIN_FAIL");
    if (endpoint_ != nullptr) endpoint_->close();
  }

  Status write(std::uint64_t id, const Token& token) {
    flatbuffers::FlatBufferBuilder out;
    const schema::WireSpan block(0, 16);
    const auto bytes = schema::vector_of(out, token), gpu = schema::vector_of(out, GpuUuid{});
    const auto blocks = out.CreateVectorOfStructs(&block, 1);
    out.Finish(schema::CreateNetWrite(out, id, key_.id.serial, bytes, gpu, blocks));
    return endpoint_->on_message(static_cast<std::uint16_t>(Message::write), finished(out), {});
  }
  std::size_t count(Message message) const {
    return static_cast<std::size_t>(
        std::count_if(channel_.sent.begin(), channel_.sent.end(),
                      [message](const auto& each) { return each.message == message; }));
  }
  /// Of the last `clear`.
  std::uint32_t flow() const {
    std::uint32_t found = 0;
    for (const auto& each : channel_.sent)
      if (each.message == Message::clear) found = verified<schema::NetClear>(each.bytes)->flow();
    return found;
  }

  Bytes memory_ = Bytes(4096, std::byte{1});
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
  const std::uint64_t most = transport_->capabilities().max_inflight + 1;  // and one that was told
  for (std::uint64_t id = 1; id <= most; ++id) {
    ASSERT_TRUE(write(id, {}).ok()) << id;
    endpoint_->progress(ends_);
  }
  EXPECT_EQ(write(most + 1, {}).code(), Code::corrupt);
  EXPECT_EQ(endpoint_->next_look().when, NextLook::When::at) << "nothing is to be done at once";
  channel_.full = false;
  endpoint_->progress(ends_);
  EXPECT_EQ(count(Message::ended), most);
  EXPECT_TRUE(write(most + 1, {}).ok());
}

TEST_F(NcclNetEndpointTest, ABrokenFlowCarriesNothingMore) {
  begin("listen:0:2");
  ASSERT_TRUE(write(1, key_.token).ok());
  const std::uint32_t first = flow();
  // Its order has ended: that is to be told, and was not yet.
  until([&] { return endpoint_->next_look().when == NextLook::When::now; });
  ASSERT_TRUE(write(2, key_.token).ok());
  EXPECT_NE(flow(), first);
  until([&] {
    endpoint_->progress(ends_);
    return count(Message::ended) == 2;
  });
  // What broke is said before what it has ended.
  const auto place = [&](Message message) {
    return std::find_if(channel_.sent.begin(), channel_.sent.end(),
                        [message](const auto& each) { return each.message == message; });
  };
  EXPECT_LT(place(Message::broken), place(Message::ended));
}

TEST_F(NcclNetEndpointTest, ABrokenFlowDoesNotListen) {
  begin("accept:0:2");
  ASSERT_TRUE(write(1, key_.token).ok());
  until([&] { return endpoint_->next_look().when == NextLook::When::now; });
  endpoint_->progress(ends_);
  EXPECT_EQ(count(Message::broken), 1u);
  EXPECT_EQ(count(Message::listening), 0u);
  EXPECT_EQ(count(Message::ended), 1u);
}

}  // namespace nccl_net_endpoint_test
}  // namespace linkspan::transport::nccl_net
