// Tests Engines on two hosts: each byte arrives in its place, whatever the cable does.
#include "tests/conformance/engine_world.hpp"
#include "tests/hosts/hosts.hpp"

namespace linkspan::test {
namespace cables_test {

constexpr std::uint64_t kBytes = (1u << 20) + 5;

class HostCables : public OnHosts, public ::testing::WithParamInterface<Cable> {
 protected:
  void SetUp() override { join(GetParam()); }
};

TEST_P(HostCables, MoveOddBytesBothWays) {
  far().add("there", {.kind = "host", .bytes = kBytes});
  Held& here = held_.emplace_back(Held::make(engine(), {.kind = "host", .bytes = kBytes}));
  const Peer peer = hosts_->connect(network().way_to(far().address()));
  const RemoteRegion there = take(peer.lookup("there"));
  std::vector<Block> pages;
  for (std::uint64_t i = 0; i < 100; ++i) pages.push_back({i * 577, (99 - i) * 577, 577});
  const std::vector<Block> shapes[] = {
      {{5, 0, 1}},
      {{3, 7, 4095}, {(1u << 18) + 1, 8191, (1u << 18) + 3}, {kBytes - 2, kBytes - 2, 2}},
      pages};
  std::uint64_t seed = 1;
  for (const auto& blocks : shapes)
    for (const Op op : {Op::write, Op::read})
      expect_moved(far(), "there", here, op, blocks, seed += 2, [&] {
        return op == Op::write ? peer.write(here.region, there, std::span(blocks))
                               : peer.read(here.region, there, std::span(blocks));
      });
}

TEST_P(HostCables, NotifyBehindTheData) {
  constexpr std::uint64_t kTimes = 8, kPart = (16u << 10) + 1;
  far().add("there", {.kind = "host", .bytes = kBytes});
  Held& here = held_.emplace_back(Held::make(engine(), {.kind = "host", .bytes = kBytes}));
  const Peer peer = hosts_->connect(network().way_to(far().address()));
  const RemoteRegion there = take(peer.lookup("there"));
  far().fill("there", 1);
  here.fill(2);
  std::vector<Expected> landed;
  for (std::uint64_t i = 0; i < kTimes; ++i) {
    const Block part{i * kPart, i * kPart, kPart};
    const std::string text = std::to_string(i);
    const auto transfer = peer.write(here.region, there, std::span(&part, 1),
                                     {.notification = std::as_bytes(std::span(text))});
    EXPECT_EQ(far().notifications(1), std::vector<std::string>{text});
    landed.push_back({part.remote_offset, 2, part.local_offset, part.bytes});
    EXPECT_EQ(far().difference("there", 1, landed), "");
    EXPECT_EQ(finished(transfer).to_string(), "ok");
  }
}

INSTANTIATE_TEST_SUITE_P(Every, HostCables, ::testing::ValuesIn(kBadCables),
                         [](const auto& cable) { return std::string(name_of(cable.param)); });

}  // namespace cables_test
}  // namespace linkspan::test
