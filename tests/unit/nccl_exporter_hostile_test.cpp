// Tests libnccl-net-linkspan.so with a peer that says what no plugin of ours says: it loses its own
// comm, and all others go on.
#include <algorithm>

#include "integrations/nccl/src/comm.hpp"
#include "linkspan/engine.hpp"
#include "tests/support/take.hpp"
#include "tests/unit/nccl_exporter_fixture.hpp"

namespace linkspan::transport::nccl_net {
namespace nccl_exporter_hostile_test {

using linkspan::nccl::Frame, linkspan::nccl::FrameKind;
using test::must, test::take;

constexpr std::size_t kBytes = 100'000;

class NcclExporterHostile : public NcclExporter {
 protected:
  NcclExporterHostile() {
    must(engine_.listen("tcp:127.0.0.1:0"));
    must(engine_.publish("nccl.mailbox", mailbox_));
  }
  ~NcclExporterHostile() override { close(good_); }

  static void say(const Peer& peer, const Frame& frame, std::size_t bytes_behind = 0) {
    std::vector<std::byte> all(sizeof frame + bytes_behind);
    std::memcpy(all.data(), &frame, sizeof frame);
    must(peer.notify(all));
  }
  /// Moves a message between the other two ends.
  void expect_others_go_on() {
    std::ranges::fill(to_, std::byte{0});
    finish(send(good_.send, from_.data(), kBytes, source_),
           receive(good_.receive, to_.data(), kBytes, target_));
    EXPECT_TRUE(to_ == from_);
  }
  /// Returns the comm by which the plugin receives from us.
  void* accept_us(void*& listener, Peer& plugin) {
    Handle handle{};
    EXPECT_EQ(net_->listen(0, handle.data(), listener), abi::kSuccess);
    linkspan::nccl::Handle told;
    std::memcpy(&told, handle.data(), sizeof told);
    plugin = take(engine_.connect(told.where()));
    say(plugin, {.kind = FrameKind::hello, .comm = told.listener, .number = 7});
    void* receive = nullptr;
    until([&] {
      abi::DeviceHandle* kernels = nullptr;
      EXPECT_EQ(net_->accept(listener, receive, kernels), abi::kSuccess);
      return receive != nullptr;
    });
    comm_ = next(FrameKind::accepted).number;
    return receive;
  }
  /// Returns the next frame of that kind for us.
  Frame next(FrameKind kind) {
    std::optional<Frame> found;
    until([&] {
      for (const Notification& each : engine_.notifications(100ms)) {
        const auto frame = linkspan::nccl::frame_of(each.bytes);
        if (frame && frame->kind == kind) found = frame;
      }
      return found.has_value();
    });
    return *found;
  }
  int result_of(void* request) {
    int result = abi::kSuccess;
    until([&] {
      bool done = false;
      int bytes = 0;
      result = net_->test(request, done, bytes);
      EXPECT_FALSE(done);
      return result != abi::kSuccess;
    });
    return result;
  }

  Bytes from_ = pattern_of(kBytes, 1), to_ = Bytes(kBytes), mail_ = Bytes(8);
  const Ends good_ = connect();
  void* const source_ = memory(good_.send, from_);
  void* const target_ = memory(good_.receive, to_);
  Engine engine_ = take(Engine::open({.name = "hostile", .use_gpu = false}));
  const Region mailbox_ = take(engine_.register_memory(mail_.data(), mail_.size()));
  std::uint64_t comm_ = 0;  // the plugin's
};

TEST_P(NcclExporterHostile, SpeaksForNoCommOfOthers) {
  Handle handle{};
  void* listener = nullptr;
  ASSERT_EQ(net_->listen(0, handle.data(), listener), abi::kSuccess);
  linkspan::nccl::Handle told;
  std::memcpy(&told, handle.data(), sizeof told);
  const Peer plugin = take(engine_.connect(told.where()));
  for (std::uint64_t comm = 0; comm < 64; ++comm)
    for (std::uint32_t kind = 0; kind < 8; ++kind)
      for (const std::uint64_t number : {std::uint64_t{0}, std::uint64_t{1}, ~std::uint64_t{0}})
        say(plugin,
            {.kind = static_cast<FrameKind>(kind), .comm = comm, .number = number, .bytes = number},
            number % 3);
  for (std::size_t bytes = 0; bytes < 200; ++bytes) must(plugin.notify(Bytes(bytes)));
  for (int message = 0; message < 8; ++message) expect_others_go_on();
  void* receive = nullptr;
  abi::DeviceHandle* kernels = nullptr;
  EXPECT_EQ(net_->accept(listener, receive, kernels), abi::kSuccess);
  EXPECT_EQ(receive, nullptr) << "it does not know the listener";
  EXPECT_EQ(net_->close_listen(listener), abi::kSuccess);
}

TEST_P(NcclExporterHostile, LosesItsCommByAMessageThatMayNotCome) {
  struct Case {
    Frame frame;
    std::size_t behind;
  };
  const std::uint64_t far = linkspan::nccl::kAhead + 1;
  const Case cases[] = {
      {{.kind = FrameKind::landed, .number = 1, .bytes = 8}, 0},           // without a receive
      {{.kind = FrameKind::landed, .number = 0, .bytes = kBytes + 1}, 0},  // more than its room
      {{.kind = FrameKind::landed, .number = ~std::uint64_t{0}}, 0},
      {{.kind = FrameKind::small, .number = 0, .bytes = 8}, 7},
      {{.kind = FrameKind::small, .number = 0, .bytes = ~std::uint64_t{0}}, 8},
      {{.kind = FrameKind::small, .number = far, .bytes = 8}, 8},  // too early
      {{.kind = FrameKind::room, .number = 0, .bytes = 8}, 0},
      {{.kind = FrameKind::accepted, .number = 0}, 0},
      {{.kind = static_cast<FrameKind>(99), .number = 0}, 0},
  };
  for (const Case& each : cases) {
    void* listener = nullptr;
    Peer plugin;
    void* const comm = accept_us(listener, plugin);
    Bytes to(kBytes);
    void* const request = receive(comm, to.data(), kBytes, memory(comm, to));
    Frame frame = each.frame;
    frame.comm = comm_;
    say(plugin, frame, each.behind);
    EXPECT_EQ(result_of(request), abi::kRemote) << &each - cases;
    EXPECT_TRUE(to == Bytes(kBytes)) << "a byte of it";
    expect_others_go_on();
    EXPECT_EQ(net_->close_receive(comm), abi::kSuccess);
    EXPECT_EQ(net_->close_listen(listener), abi::kSuccess);
    must(plugin.close());
  }
}

TEST_P(NcclExporterHostile, LosesItsCommByARoomThatMayNotBe) {
  Bytes theirs(4096);
  const Region published = take(engine_.register_memory(theirs.data(), theirs.size()));
  must(engine_.publish("nccl.5", published));
  const Frame cases[] = {
      {.kind = FrameKind::room, .number = 1, .bytes = kBytes, .region = 5},  // out of its order
      {.kind = FrameKind::room, .number = 0, .bytes = kBytes, .region = 6},  // there is none
      {.kind = FrameKind::room, .number = 0, .bytes = kBytes, .region = 5},  // beyond its end
      {.kind = FrameKind::room,
       .number = 0,
       .bytes = kBytes,
       .region = 5,
       .offset = ~std::uint64_t{0} - 10},
      {.kind = FrameKind::room, .number = 0, .bytes = 1, .region = 5},  // too little
      {.kind = FrameKind::landed, .number = 0, .bytes = kBytes},
      {.kind = FrameKind::want, .number = 0},
  };
  for (const Frame& each : cases) {
    linkspan::nccl::Handle told{.listener = 1};
    std::ranges::copy(engine_.address(), told.address.begin());
    Handle handle{};
    std::memcpy(handle.data(), &told, sizeof told);
    void* comm = nullptr;
    abi::DeviceHandle* kernels = nullptr;
    std::optional<Peer> plugin;
    std::uint64_t sender = 0;
    until([&] {
      EXPECT_EQ(net_->connect(0, handle.data(), comm, kernels), abi::kSuccess);
      if (!plugin) {
        if (auto met = engine_.accept({}); met.ok()) plugin = *met;
      } else if (sender == 0) {
        for (const Notification& heard : engine_.notifications())
          if (const auto hello = linkspan::nccl::frame_of(heard.bytes)) sender = hello->number;
        if (sender != 0) say(*plugin, {.kind = FrameKind::accepted, .comm = sender, .number = 9});
      }
      return comm != nullptr;
    });
    void* request = nullptr;
    int result = net_->send(comm, from_.data(), kBytes, 1, memory(comm, from_), request);
    EXPECT_EQ(result, abi::kSuccess);
    Frame frame = each;
    frame.comm = sender;
    say(*plugin, frame);
    EXPECT_NE(result_of(request), abi::kSuccess) << &each - cases;
    EXPECT_TRUE(theirs == Bytes(4096));
    expect_others_go_on();
    EXPECT_EQ(net_->close_send(comm), abi::kSuccess);
    must(plugin->close());
  }
}

INSTANTIATE_TEST_SUITE_P(Every, NcclExporterHostile, ::testing::Values(abi::kNewest),
                         name_of_version);

}  // namespace nccl_exporter_hostile_test
}  // namespace linkspan::transport::nccl_net
