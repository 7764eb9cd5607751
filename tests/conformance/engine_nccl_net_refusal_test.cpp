// Tests what an Engine reports of a network plugin that it cannot load, that the peer lacks, or
// that does not take the memory. The other paths go on.
#include "tests/conformance/wire_pair.hpp"

namespace linkspan::test {
namespace engine_nccl_net_refusal_test {

constexpr Block kAll{0, 0, 1u << 20};

void expect_says(const Status& status, Code code, const std::vector<std::string>& words) {
  EXPECT_EQ(status.code(), code) << status.to_string();
  for (const std::string& each : words)
    EXPECT_NE(status.what().find(each), std::string::npos) << each << " in " << status.to_string();
}

Result<Engine> with_file(const std::string& file) {
  EngineOptions options = engine_options("near");
  options.transport["nccl_net.plugin"] = file;
  return Engine::open(options);
}

TEST(EngineNcclNetRefuses, APluginThatCannotBeLoaded) {
  const auto refused = [](const std::string& file, Code code, const char* why) {
    expect_says(with_file(file).status(), code, {file, why});
  };
  refused("/nonexistent/plugin.so", Code::not_found, "LINKSPAN_NCCL_NET_PLUGIN");
  refused("nonexistent", Code::not_found, "libnccl-net-nonexistent.so");
  refused(plugin_file("-v4"), Code::unsupported, "_v5 to _v12");
  refused(plugin_file("-none"), Code::unsupported, "no network plugin of NCCL's");
}

TEST(EngineNcclNetRefuses, APluginThatFailsToStart) {
  PluginSettings settings;
  settings.set("FAIL=devices:0:3");
  // The plugin has a version that nothing else in this process loads.
  expect_says(with_file(plugin_file("-v11")).status(), Code::internal,
              {"linkspan-test (v11)", "devices answered ncclInternalError"});
  settings.clear();
  EXPECT_TRUE(with_file(plugin_file("-v11")).ok());
}

TEST(EngineNcclNetRefuses, WhatOnlyOneEndHas) {
  Held here;
  FarEngine none({"LINKSPAN_NCCL_NET_PLUGIN=none"}), has(with_wire(12));
  Engine with = take(Engine::open(wire_options(12))), without = take(with_file("none"));
  for (const auto& [engine, far] : {std::pair(&with, &none), std::pair(&without, &has)}) {
    here = Held::make(*engine, {.kind = "host"});
    far->add("there", {.kind = "shared"});
    const Peer peer = take(engine->connect(far->address()));
    const RemoteRegion there = take(peer.lookup("there"));
    const auto refused = move(peer, Op::write, here.region, there, kAll, by_wire(12));
    expect_says(refused.status(), Code::unsupported, {"\"nccl_net\" was required", "memfd"});
    if (engine == &with) {
      expect_says(refused.status(), Code::unsupported, {"lacks the transport"});
    }
    EXPECT_EQ(finished(move(peer, Op::write, here.region, there, kAll, {})).to_string(), "ok");
    EXPECT_EQ(engine->deregister(here.region, 5s).to_string(), "ok");
  }
}

/// A transfer that requires no path, or another one, does not get the plugin's.
TEST(EngineNcclNetRefuses, OtherPathsThanTheOneRequired) {
  Held here;
  WirePair pair(12);
  here = Held::make(pair.engine, {.kind = "host"});
  pair.far.add("there", {.kind = "shared"});
  const RemoteRegion there = pair.remote("there");
  EXPECT_EQ(take(pair.peer.explain(Op::write, here.region, there, 1, 100)).path,
            "memfd+cpu_threads");
  TransferOptions other;
  other.require = "cuda_ipc";
  expect_says(move(pair.peer, Op::write, here.region, there, kAll, other).status(),
              Code::unsupported, {"\"cuda_ipc\" was required", "memfd+cpu_threads"});
  other.require = "!memfd";
  EXPECT_EQ(finished(move(pair.peer, Op::write, here.region, there, kAll, other)).to_string(),
            "ok");
  // prepare() takes no options: it has chosen by then.
  const auto prepared = take(pair.peer.prepare(Op::write, here.region, there, std::span(&kAll, 1)));
  expect_says(prepared.post(by_wire(12)).status(), Code::unsupported,
              {"\"nccl_net\" was required", "memfd"});
  EXPECT_EQ(finished(prepared.post()).to_string(), "ok");
}

/// GPUDirect-TCPX takes what begins at a multiple of 4 KiB. The region is registered all the same.
TEST(EngineNcclNetRefusesOnDevice, MemoryThatIsNotAligned) {
  if (Status status = need_gpus(1); !status.ok()) GTEST_SKIP() << status.to_string();
  constexpr std::uint64_t kOff = Buffer::kGuard + 256;
  Held odd, even;
  WirePair pair(7);
  pair.far.accept();
  odd = Held::make(pair.engine, {.kind = "device0", .guard = kOff});
  even = Held::make(pair.engine, {.kind = "device0"});
  pair.far.add("odd", {.kind = "device0", .guard = kOff});
  pair.far.add("even", {.kind = "device0"});
  const RemoteRegion far_odd = pair.remote("odd"), far_even = pair.remote("even");
  expect_says(move(pair.peer, Op::write, odd.region, far_even, kAll, by_wire(7)).status(),
              Code::unsupported,
              {"\"nccl_net\" was required", "multiple of 4096", "allocate 4096 more"});
  expect_says(move(pair.peer, Op::read, even.region, far_odd, kAll, by_wire(7)).status(),
              Code::unsupported, {"\"nccl_net\" was required", "no key of nccl_net for \"odd\""});
  const auto received = take(pair.far.post({.name = "even", .bytes = 64}));
  const Transfer sent = take(pair.peer.send(1, odd.at(0), 64, by_wire(7)));
  EXPECT_EQ(sent.wait(10s).to_string(), "ok") << "the whole allocation is taken, from its begin";
  EXPECT_EQ(pair.far.end(received).code, "ok");
  odd.fill(1);
  pair.far.fill("odd", 2);
  EXPECT_EQ(finished(move(pair.peer, Op::write, odd.region, far_odd, kAll, {})).to_string(), "ok");
  EXPECT_EQ(pair.far.difference("odd", 2, {{0, 1, 0, kAll.bytes}}), "");
  EXPECT_EQ(
      finished(move(pair.peer, Op::write, even.region, far_even, kAll, by_wire(7))).to_string(),
      "ok");
}

}  // namespace engine_nccl_net_refusal_test
}  // namespace linkspan::test
