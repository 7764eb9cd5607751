// Tests a context that is lost during transfers: all of that GPU's end with the driver's error,
// those between CPUs and of another GPU go on, and the Engine closes. Also one that could not be
// opened.
#include "tests/conformance/engine_fixture.hpp"
#include "tests/support/driver_shim/control.hpp"

namespace linkspan::test {
namespace lost_context_test {

constexpr std::uint64_t kBytes = 4u << 20, kParts = 64;

class LostContextOnDevice : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!shim_) GTEST_SKIP() << DriverShim::kNeeded;
    if (const Status status = need_gpus(2); !status.ok()) GTEST_SKIP() << status.to_string();
  }
  void TearDown() override {
    if (shim_) shim_.order("clear");
  }
  const DriverShim shim_ = DriverShim::find();
};

struct Way {
  Held here;
  RemoteRegion there;
  std::vector<Transfer> flights;
  std::vector<Status> refused;

  void submit(const Peer& peer) {
    for (std::uint64_t i = 0; i < kParts; ++i) {
      const Block part = part_of(kBytes, i, kParts);
      auto transfer = peer.write(here.region, there, std::span(&part, 1));
      if (transfer.ok())
        flights.push_back(*std::move(transfer));
      else
        refused.push_back(transfer.status());
    }
  }
  std::vector<Status> ends() {
    std::vector<Status> all = std::move(refused);
    for (const Transfer& each : flights) all.push_back(each.wait(10s));
    flights.clear();
    refused.clear();
    return all;
  }
};

TEST_P(LostContextOnDevice, EndsItsTransfersAndNobodyElses) {
  const std::string error = GetParam();
  std::vector<Way> ways(3);  // their memory outlives the Engine
  Pair pair;
  const char* const kinds[] = {"device0", "device1", "host"};
  for (std::size_t i = 0; i < ways.size(); ++i) {
    ways[i].here = Held::make(pair.engine, {.kind = kinds[i], .bytes = kBytes});
    ways[i].here.fill(1);
  }
  for (std::size_t i = 0; i < ways.size(); ++i) {
    pair.far.add(kinds[i], {.kind = kinds[i], .bytes = kBytes});
    pair.far.fill(kinds[i], 9);
    ways[i].there = pair.remote(kinds[i]);
  }
  for (Way& way : ways) way.submit(pair.peer);
  // Orders that still wait to be joined there would meet the error instead.
  for (const Transfer& each : ways[1].flights) EXPECT_EQ(each.wait(10s).to_string(), "ok");
  shim_.order("lose cuStreamWriteValue64 1 " + error);
  ways[0].submit(pair.peer);  // the first of them that begins meets it
  const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
  while (shim_.struck().empty() && !limit.passed()) pair.engine.progress();
  ASSERT_EQ(shim_.struck(), "cuStreamWriteValue64");
  for (Way& way : ways) way.submit(pair.peer);
  const auto is_cause = [&](const Status& end) {
    return end.code() == Code::cuda && end.what().find("(" + error + ")") != std::string::npos;
  };
  std::size_t lost = 0;
  for (const Status& end : ways[0].ends()) {
    EXPECT_TRUE(end.ok() || is_cause(end)) << end.to_string();
    lost += end.ok() ? 0 : 1;
  }
  EXPECT_GE(lost, 2 * kParts) << "what was submitted since";
  ways[0].submit(pair.peer);
  for (const Status& end : ways[0].ends()) EXPECT_TRUE(is_cause(end)) << end.to_string();
  for (const std::size_t other : {1u, 2u}) {
    for (const Status& end : ways[other].ends()) EXPECT_EQ(end.to_string(), "ok") << kinds[other];
    EXPECT_EQ(pair.far.difference(kinds[other], 9, {{0, 1, 0, kBytes}}), "");
  }
  EXPECT_EQ(pair.engine.close(5s).to_string(), "ok");
}

/// Without its GPUs the Engine would have a CPU copy the user's device memory.
TEST(OpenOnDevice, ADriverThatFailsIsNoMachineWithoutGpus) {
  const DriverShim shim = DriverShim::find();
  if (!shim) GTEST_SKIP() << DriverShim::kNeeded;
  if (const Status status = need_gpus(1); !status.ok()) GTEST_SKIP() << status.to_string();
  shim.order("fail cuDeviceGetCount 1 999");
  const auto refused = Engine::open(engine_options("without"));
  EXPECT_EQ(refused.status().code(), Code::cuda) << refused.status().to_string();
  shim.order("clear");
  EXPECT_EQ(Engine::open(engine_options("with")).status().to_string(), "ok");
}

INSTANTIATE_TEST_SUITE_P(Every, LostContextOnDevice, ::testing::Values("226", "700", "719"));

}  // namespace lost_context_test
}  // namespace linkspan::test
