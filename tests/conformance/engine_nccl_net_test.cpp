// Engines that reach each other by a network plugin as well: every pair of memory kinds, both ways,
// and what is said where it cannot be had.
#include <tuple>

#include "tests/conformance/engine_fixture.hpp"

namespace linkspan::test {
namespace {

constexpr std::uint64_t kBytes = 9u << 20;  // of more than one message
constexpr const char* kVariable = "LINKSPAN_NCCL_NET_PLUGIN=";

/// Of the device type UNPACK, and the newest.
constexpr int kVersions[] = {7, 12};

std::string plugin_of(int version) {
  return file_beside_this_program("libnccl-net-linkspan-test" +
                                  (version == 7 ? "" : "-v" + std::to_string(version)) + ".so");
}

TransferOptions by_plugin() {
  TransferOptions options;
  options.require = "nccl_net";
  return options;
}

/// Both have the plugin.
struct PluginPair {
  explicit PluginPair(int version, std::vector<std::string> environment = {})
      : far(with(std::move(environment), kVariable + plugin_of(version))),
        engine(take(Engine::open(options(version)))),
        peer(take(engine.connect(far.address()))) {}

  static std::vector<std::string> with(std::vector<std::string> environment, std::string more) {
    environment.push_back(std::move(more));
    return environment;
  }
  static EngineOptions options(int version) {
    EngineOptions options = engine_options("near");
    options.nccl_net_plugin = plugin_of(version);
    return options;
  }

  FarEngine far;
  Engine engine;
  Peer peer;
};

using Case = std::tuple<int, Kind, Kind>;

class EngineNcclNet : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (Status status = kinds_here({near(), far()}); !status.ok())
      GTEST_SKIP() << status.to_string();
  }
  static int version() { return std::get<0>(GetParam()); }
  static Kind near() { return std::get<1>(GetParam()); }
  static Kind far() { return std::get<2>(GetParam()); }
};

TEST_P(EngineNcclNet, MovesBlocksBothWays) {
  Held here;  // outlives the Engine
  PluginPair pair(version());
  here = Held::make(pair.engine, {.kind = near().name, .bytes = kBytes});
  pair.far.add("there", {.kind = far().name, .bytes = kBytes});
  RemoteRegion there = take(pair.peer.lookup("there"));
  const Block blocks[] = {{5, 3, 1},
                          {4097, 70001, 65537},
                          {kBytes - (5u << 20), (3u << 20) + 1, (5u << 20) - 7},
                          {300000, kBytes - 100, 100}};
  std::uint64_t seed = 10;
  for (const Op op : {Op::write, Op::read}) {
    seed += 2;
    here.fill(seed);
    pair.far.fill("there", seed + 1);
    const auto moved = op == Op::write ? pair.peer.write(here.region, there, blocks, by_plugin())
                                       : pair.peer.read(here.region, there, blocks, by_plugin());
    ASSERT_EQ(finished(moved).to_string(), "ok");
    std::vector<Expected> here_due, there_due;
    for (const Block& b : blocks)
      if (op == Op::write)
        there_due.push_back({b.remote_offset, seed, b.local_offset, b.bytes});
      else
        here_due.push_back({b.local_offset, seed + 1, b.remote_offset, b.bytes});
    EXPECT_EQ(here.difference(seed, here_due), "");
    EXPECT_EQ(pair.far.difference("there", seed + 1, there_due), "");
  }
  there = {};
  EXPECT_EQ(pair.engine.deregister(here.region).to_string(), "ok");
  EXPECT_EQ(pair.far.deregister("there", 10s).to_string(), "ok");
}

INSTANTIATE_TEST_SUITE_P(Every, EngineNcclNet,
                         ::testing::Combine(::testing::ValuesIn(kVersions),
                                            ::testing::Values(kKinds[0], kKinds[2], kKinds[3],
                                                              kKinds[4]),
                                            ::testing::Values(kKinds[0], kKinds[3], kKinds[4])),
                         [](const auto& param) {
                           return "v" + std::to_string(std::get<0>(param.param)) + "_" +
                                  std::get<1>(param.param).name + "_to_" +
                                  std::get<2>(param.param).name;
                         });

}  // namespace
}  // namespace linkspan::test
