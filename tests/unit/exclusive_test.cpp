// Tests that an exclusive region's handle does not leave its owner, however a peer asks for it. The
// peer here breaks the rules and checks all that it receives.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>

#include "control/exchange.hpp"
#include "linkspan/engine.hpp"
#include "memory/descriptor.hpp"
#include "tests/support/kinds.hpp"
#include "tests/support/raw_peer.hpp"
#include "tests/support/take.hpp"
#include "transport/local/key.hpp"
#include "transport/local/region_liveness.hpp"

namespace linkspan::test {
namespace exclusive_test {

using control::FrameOp;

constexpr Permissions kExclusive{.read = true, .write = true, .exclusive = true};
constexpr Permissions kOpen{.read = true, .write = true};
constexpr std::size_t kBytes = 65536;

class ExclusiveTest : public ::testing::Test {
 protected:
  void open(bool gpu) {
    char name[] = "/tmp/linkspan-test-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
    engine_.emplace(take(Engine::open({.name = "owner", .socket_dir = folder_, .use_gpu = gpu})));
    must(engine_->listen("s"));
    channel_.emplace(connect_raw(folder_ + "/s"));
    greet_raw(*channel_);
    peer_ = take(engine_->accept(10s));
  }
  void TearDown() override {
    if (channel_) send_raw(*channel_, FrameOp::goodbye, {});
    channel_.reset();
    engine_.reset();
    std::filesystem::remove_all(folder_);
  }

  /// Checks that the peer received only the table of liveness, and no access to the memory.
  static void has_no_handle(std::span<const std::byte> descriptor, std::span<const base::Fd> fds) {
    const memory::Descriptor d = take(memory::decode(descriptor));
    EXPECT_TRUE(d.peers.exclusive);
    ASSERT_EQ(d.keys.size(), 1u);
    EXPECT_FALSE(d.keys[0].bearer);
    const auto key = take(transport::local::decode_key(d.keys[0].bytes));
    EXPECT_FALSE(key.handle.ipc.has_value());
    EXPECT_FALSE(key.handle.memfd);
    EXPECT_EQ(key.address, 0u);
    ASSERT_EQ(fds.size(), 1u);
    struct stat facts {};
    ASSERT_EQ(::fstat(fds[0].get(), &facts), 0);
    EXPECT_EQ(facts.st_size, static_cast<off_t>(transport::local::kLivenessEntries * 8));
  }
  void ask(std::string_view name, std::uint64_t serial = 0) {
    send_raw(*channel_, FrameOp::import, control::encode_import(name, serial));
    const auto said = next_raw(*channel_);
    ASSERT_TRUE(said.has_value());
    ASSERT_EQ(static_cast<FrameOp>(said->header.op), FrameOp::imported);
    has_no_handle(take(control::decode_imported(said->payload)), said->fds);
  }
  /// Asks by name, by an offered message and by its serial, and checks that no handle comes.
  void expect_no_handle(const Region& region, void* data) {
    must(engine_->publish("region", region));
    ask("region");
    const Transfer sent = take(peer_.send(3, data, 4096));
    const auto said = next_raw(*channel_);
    ASSERT_TRUE(said.has_value());
    ASSERT_EQ(static_cast<FrameOp>(said->header.op), FrameOp::offer);
    const control::MessageOffer offer = take(control::decode_offer(said->payload));
    has_no_handle(offer.descriptor, said->fds);
    ask({}, offer.serial);
    (void)sent.cancel();
  }

  std::string folder_;
  std::optional<Engine> engine_;
  std::optional<base::FdChannel> channel_;
  Peer peer_;
};

TEST_F(ExclusiveTest, SharedMemoryStaysWithItsOwner) {
  open(false);
  const Region region = take(engine_->allocate_shared(kBytes, {.peers = kExclusive}));
  auto* data = static_cast<std::byte*>(region.data());
  expect_no_handle(region, data + 100);
  EXPECT_EQ(engine_->register_memory(data, 4096, {.peers = kOpen}).status().code(),
            Code::invalid_argument);
}

TEST_F(ExclusiveTest, TheAddressOfPrivateMemoryStaysToo) {
  open(false);
  std::vector<std::byte> memory(kBytes);
  const Region region =
      take(engine_->register_memory(memory.data(), kBytes, {.peers = kExclusive}));
  expect_no_handle(region, memory.data() + 100);
}

TEST_F(ExclusiveTest, OpenSharedMemoryIsNotMadeExclusiveLater) {
  open(false);
  const Region region = take(engine_->allocate_shared(kBytes, {.peers = kOpen}));
  const Status status =
      engine_->register_memory(region.data(), 4096, {.peers = kExclusive}).status();
  EXPECT_EQ(status.code(), Code::invalid_argument);
  EXPECT_NE(status.what().find("register what is exclusive first"), std::string::npos);
  EXPECT_TRUE(engine_->register_memory(region.data(), 4096, {.peers = kOpen}).ok());
}

class ExclusiveOnDevice : public ExclusiveTest {
 protected:
  void SetUp() override {
    if (Status status = need_gpus(1); !status.ok()) GTEST_SKIP() << status.to_string();
    open(true);
    buffer_ = take(Buffer::create(MemoryKind::device, kBytes));
  }
  std::byte* at(std::size_t offset) { return static_cast<std::byte*>(buffer_->data()) + offset; }

  std::unique_ptr<Buffer> buffer_;
};

TEST_F(ExclusiveOnDevice, GpuMemoryStaysWithItsOwner) {
  const Region region = take(engine_->register_memory(at(0), kBytes / 2, {.peers = kExclusive}));
  expect_no_handle(region, at(100));
}

TEST_F(ExclusiveOnDevice, NorDoesAHandleOfItsNeighbourhoodLeave) {
  const Region region = take(engine_->register_memory(at(0), kBytes / 2, {.peers = kExclusive}));
  expect_no_handle(region, at(kBytes / 2));  // a message from beside it
  EXPECT_EQ(engine_->register_memory(at(kBytes / 2), 4096, {.peers = kOpen}).status().code(),
            Code::invalid_argument);
  EXPECT_TRUE(engine_->register_memory(at(kBytes / 2), 4096, {.peers = kExclusive}).ok());
}

TEST_F(ExclusiveOnDevice, WhatAMessageHasLentIsNotMadeExclusiveLater) {
  const Transfer sent = take(peer_.send(3, at(0), 4096));
  ASSERT_TRUE(next_raw(*channel_).has_value());
  EXPECT_EQ(engine_->register_memory(at(0), 4096, {.peers = kExclusive}).status().code(),
            Code::invalid_argument);
  (void)sent.cancel();
}

}  // namespace exclusive_test
}  // namespace linkspan::test
