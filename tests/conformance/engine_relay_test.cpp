// Tests large copies from pinned memory to a GPU over two PCIe links, between two processes.
#include "copy/chooser.hpp"
#include "tests/conformance/engine_fixture.hpp"

namespace linkspan::test {
namespace engine_relay_test {

constexpr std::uint64_t kMiB = 1u << 20;
constexpr std::uint64_t kBytes = 45 * kMiB + 1001;
constexpr Block kBlock{7, 1001, kBytes - 1001 - 13};  // relayed

class EngineRelayOnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Status two = need_gpus(2); !two.ok()) GTEST_SKIP() << two.to_string();
    EngineOptions options = engine_options("near");
    options.relay_gpus = 1;
    far_ = std::make_unique<FarEngine>();
    engine_.emplace(take(Engine::open(options)));
    peer_ = take(engine_->connect(far_->address()));
  }
  /// Explains a transfer of all of kBlock.
  Explanation explain(Op op, const RemoteRegion& remote) {
    return take(peer_.explain(op, here_.region, remote, 1, kBlock.bytes));
  }
  static void takes_two_links(const Explanation& why) {
    EXPECT_NE(why.path.find("+copy_engine"), std::string::npos) << why.path;
    EXPECT_EQ(why.executor, "here");
    EXPECT_NE(why.reason.find("over 2 PCIe links, 1 of them"), std::string::npos) << why.reason;
    EXPECT_GT(why.expected_gbps, 60);
  }

  Held here_;  // outlives the Engine
  std::unique_ptr<FarEngine> far_;
  std::optional<Engine> engine_;
  Peer peer_;
};

TEST_F(EngineRelayOnDevice, WritesPinnedMemoryToAPeersGpu) {
  here_ = Held::make(*engine_, {.kind = "pinned", .bytes = kBytes});
  here_.fill(1);
  for (const std::string there : {"device0", "device1"}) {
    SCOPED_TRACE(there);
    far_->add(there, {.kind = there, .bytes = kBytes});
    far_->fill(there, 2);
    const RemoteRegion remote = take(peer_.lookup(there));
    takes_two_links(explain(Op::write, remote));
    EXPECT_EQ(finished(peer_.write(here_.region, remote, std::span(&kBlock, 1))).to_string(), "ok");
    EXPECT_EQ(far_->difference(there, 2, {{kBlock.remote_offset, 1, 7, kBlock.bytes}}), "");
  }
}

TEST_F(EngineRelayOnDevice, ReadsAPeersSharedMemoryIntoItsGpu) {
  here_ = Held::make(*engine_, {.kind = "device1", .bytes = kBytes});
  here_.fill(1);
  far_->add("there", {.kind = "shared", .bytes = kBytes});
  far_->fill("there", 2);
  const RemoteRegion remote = take(peer_.lookup("there"));
  takes_two_links(explain(Op::read, remote));
  EXPECT_EQ(finished(peer_.read(here_.region, remote, std::span(&kBlock, 1))).to_string(), "ok");
  EXPECT_EQ(here_.difference(1, {{7, 2, kBlock.remote_offset, kBlock.bytes}}), "");
  // The other way there is one link, and a word about it.
  const Explanation back = explain(Op::write, remote);
  EXPECT_LT(back.expected_gbps, 60);
  ASSERT_FALSE(back.refused.empty());
  EXPECT_NE(back.refused.back().reason.find("only copies to a GPU"), std::string::npos)
      << back.refused.back().reason;
  EXPECT_EQ(finished(peer_.write(here_.region, remote, std::span(&kBlock, 1))).to_string(), "ok");
}

TEST_F(EngineRelayOnDevice, ACanceledTransferIsQuietWhenItSaysSo) {
  here_ = Held::make(*engine_, {.kind = "pinned", .bytes = kBytes});
  here_.fill(1);
  far_->add("there", {.kind = "device0", .bytes = kBytes});
  const RemoteRegion remote = take(peer_.lookup("there"));
  const Transfer moved = take(peer_.write(here_.region, remote, std::span(&kBlock, 1)));
  (void)moved.cancel();
  const Status end = moved.wait(20s);
  EXPECT_TRUE(end.ok() || end.code() == Code::canceled) << end.to_string();
  far_->fill("there", 3);
  EXPECT_EQ(far_->difference("there", 3), "");
}

/// Returns the far end's explanation of a large write from its pinned memory to our GPU.
std::string why_one_link(const std::vector<std::string>& environment) {
  Held here;  // outlives the Engine
  FarEngine far(environment);
  Engine engine = take(Engine::open(engine_options("near")));
  must(engine.listen());
  here = Held::make(engine, {.kind = "device0", .bytes = kBytes});
  must(engine.publish("here", here.region));
  here.fill(1);
  far.connect(engine.address());
  far.add("pinned", {.kind = "pinned", .bytes = kBytes});
  far.fill("pinned", 2);
  const std::string why = far.why_no_better("pinned", "here", kBytes);
  far.start("pinned", "here", 1);
  EXPECT_EQ(far.ends(), std::vector<std::string>{"ok"});
  EXPECT_EQ(here.difference(1, {{0, 2, 0, kBytes}}), "");
  return why;
}

using EngineLinksOnDevice = EngineRelayOnDevice;

TEST_F(EngineLinksOnDevice, WithOneVisibleGpuItTakesOneLinkAndSaysWhy) {
  const std::string why = why_one_link({"CUDA_VISIBLE_DEVICES=0", "LINKSPAN_RELAY_GPUS=1"});
  EXPECT_NE(why.find("sees one GPU only"), std::string::npos) << why;
}

TEST_F(EngineLinksOnDevice, UnlessAskedForItTakesOneLinkAndSaysWhy) {
  const std::string why = why_one_link({});
  EXPECT_NE(why.find("LINKSPAN_RELAY_GPUS) is 0"), std::string::npos) << why;
}

}  // namespace engine_relay_test
}  // namespace linkspan::test
