// Tests what operators see of an Engine: the lines of its dump, their bounds, and the sums of its
// metrics.
#include "engine/diagnostics/diagnostics.hpp"

#include <unistd.h>

#include "engine/diagnostics/report.hpp"
#include "tests/unit/engine_pair.hpp"

namespace linkspan::engine {
namespace diagnostics_test {

using namespace std::chrono_literals;
using test::contains, test::impl_of, test::is, test::metric, test::must, test::RawPeer, test::take;

constexpr std::size_t kMore = 6, kMany = Listing::kMax + kMore;

class Dumps : public test::EnginePair {
 protected:
  static std::string dump(const Engine& engine) {
    return impl_of(engine).services().diagnostics.dump();
  }
  /// Returns how many lines begin like that.
  static std::size_t lines(const std::string& text, const std::string& begin) {
    std::size_t count = 0;
    for (auto at = ("\n" + text).find("\n" + begin); at != std::string::npos;
         at = ("\n" + text).find("\n" + begin, at + 1))
      ++count;
    return count;
  }
};

TEST_F(Dumps, DescribeTheEngine) {
  const std::string here = dump(near_), there = dump(far_);
  EXPECT_EQ(here.find("engine \"near\" (pid " + std::to_string(::getpid()) + "), open for "), 0u);
  EXPECT_TRUE(contains(here, ", does not listen, no GPU: EngineOptions::use_gpu is false\n"));
  EXPECT_TRUE(contains(there, ", listens at " + far_.address() + ", no GPU"));
  EXPECT_FALSE(contains(there, ", closed"));
  must(far_.close(10s));
  EXPECT_TRUE(contains(dump(far_), ", closed\n"));
}

TEST_F(Dumps, DescribePeersRegionsAndTransfers) {
  const auto [region, remote] = share("data \"1\"", 4096);
  std::vector<std::byte> memory(100);
  const Region private_region =
      take(far_.register_memory(memory.data(), 100, {.peers = {.exclusive = true}}));
  const Transfer received = take(to_near_.recv(5, region.data(), 64, {.deadline = 1h}));
  const std::string text = dump(far_);
  const auto serial = [](const Region& of) {
    return std::to_string(HandleAccess::registration(of)->id().serial);
  };
  EXPECT_TRUE(contains(text, "\npeer 1 \"near\" (pid ")) << text;
  EXPECT_TRUE(contains(text, "; was sent the keys of region " + serial(region))) << text;
  EXPECT_TRUE(
      contains(text, "\nregion " + serial(region) +
                         " \"data ?1?\": shared memory, 4096 bytes, peers may read and write, 1 "
                         "transfers use it\n"))
      << text;
  EXPECT_TRUE(contains(text, "\nregion " + serial(private_region) +
                                 ": host memory, 100 bytes, peers may do nothing but not map, 0 "
                                 "transfers use it\n"))
      << text;
  EXPECT_TRUE(contains(text, "\ntransfer " + std::to_string(received.id()) +
                                 ": receive of 64 bytes, tag 5, unmatched, peer 1, "))
      << text;
}

TEST_F(Dumps, ListTheOldestAndCountTheRest) {
  RawPeer raw(far_);
  std::vector<Region> regions;
  std::vector<Transfer> transfers;
  for (std::size_t i = 0; i < kMany; ++i) {
    regions.push_back(take(far_.allocate_shared(4096)));
    const Peer& peer = i % 2 == 0 ? raw.peer() : to_near_;
    transfers.push_back(take(peer.recv(1, nullptr, 0, {.deadline = 1h})));
  }
  const std::string text = dump(far_);
  const std::string more = "and " + std::to_string(kMore) + " more ";
  EXPECT_EQ(lines(text, "region "), Listing::kMax);
  EXPECT_TRUE(contains(text, "\n" + more + "regions\n")) << text;
  EXPECT_EQ(lines(text, "transfer "), Listing::kMax);
  EXPECT_TRUE(contains(text, "\n" + more + "transfers\n")) << text;
  const auto line = [&](std::size_t i) {
    return lines(text, "transfer " + std::to_string(transfers[i].id()) + ":");
  };
  EXPECT_EQ(line(0), 1u);
  EXPECT_EQ(line(Listing::kMax - 1), 1u);
  EXPECT_EQ(line(Listing::kMax), 0u);
}

TEST_F(Dumps, ListPeersAndCountTheRest) {
  std::vector<std::unique_ptr<RawPeer>> peers;
  while (peers.size() + 1 < kMany) peers.push_back(std::make_unique<RawPeer>(far_));
  const std::string text = dump(far_);
  EXPECT_EQ(lines(text, "peer "), Listing::kMax);
  EXPECT_TRUE(contains(text, "\nand " + std::to_string(kMore) + " more peers\n")) << text;
}

class EngineCounts : public Dumps {};

TEST_F(EngineCounts, CountTransfersOfEachPeer) {
  const Region local = take(near_.allocate_shared(4096));
  const auto [region, remote] = share("data", 4096);
  const std::vector<Block> blocks = {{0, 0, 100}};
  for (int i = 0; i < 2; ++i) must(take(to_far_.write(local, remote, blocks)).wait(10s));
  const std::string far = R"({peer="1",name="far")";
  EXPECT_EQ(metric(near_, "peers"), 1u);
  EXPECT_EQ(metric(near_, "regions"), 1u);
  EXPECT_EQ(metric(near_, "transfers_started_total" + far + "}"), 2u);
  EXPECT_EQ(metric(near_, "imports_total" + far + "}"), 1u);
  EXPECT_EQ(metric(near_, R"(transfers_started_total{peer="gone",name=""})"), 0u);
  const std::string path = take(to_far_.explain(Op::write, local, remote, 1, 100)).path;
  EXPECT_EQ(metric(near_, "bytes_total" + far + R"(,op="write",path=")" + path + "\"}"), 200u);
}

TEST_F(EngineCounts, KeepTheSumOfPeersThatAreForgotten) {
  RawPeer one(far_), two(far_);
  for (const RawPeer* each : {&one, &two})
    EXPECT_TRUE(is(take(each->peer().recv(1, nullptr, 0)).cancel(), Code::ok));
  EXPECT_EQ(metric(far_, "peers"), 3u);
  one.leave();
  two.leave();
  const auto gone = [&](const std::string& name, const std::string& label = {}) {
    return metric(far_, name + R"({peer="gone",name="")" + label + "}");
  };
  EXPECT_TRUE(test::eventually([&] { return gone("transfers_started_total") == 2u; }));
  EXPECT_EQ(gone("transfers_failed_total", R"(,code="canceled")"), 2u);
  EXPECT_EQ(gone("transfers_outstanding"), 0u);
  EXPECT_EQ(metric(far_, "peers"), 1u);
}

TEST_F(EngineCounts, AddUpThePeersBeyondTheListed) {
  std::vector<std::unique_ptr<RawPeer>> peers;
  std::vector<Transfer> transfers;
  while (peers.size() + 1 < EngineMetrics::kPeers + 3) {
    peers.push_back(std::make_unique<RawPeer>(far_));
    transfers.push_back(take(peers.back()->peer().recv(1, nullptr, 0, {.deadline = 1h})));
  }
  EXPECT_EQ(metric(far_, "peers"), EngineMetrics::kPeers + 3);
  EXPECT_EQ(metric(far_, R"(transfers_started_total{peer="others",name=""})"), 3u);
  EXPECT_EQ(metric(far_, R"(transfers_outstanding{peer="others",name=""})"), 3u);
  EXPECT_EQ(metric(far_, R"(transfers_outstanding{peer="gone",name=""})"), std::nullopt);
}

TEST_F(EngineCounts, CountNotificationsOfTheirPeer) {
  const std::byte note[] = {std::byte{1}};
  for (int i = 0; i < 3; ++i) must(to_far_.notify(note));
  std::size_t received = 0;
  EXPECT_TRUE(test::eventually([&] { return (received += far_.notifications().size()) == 3; }));
  EXPECT_EQ(metric(near_, R"(notifications_sent_total{peer="1",name="far"})"), 3u);
  EXPECT_EQ(metric(far_, R"(notifications_received_total{peer="1",name="near"})"), 3u);
  EXPECT_EQ(metric(far_, R"(notifications_received_total{peer="gone",name=""})"), 0u);
}

TEST_F(Dumps, AnswerTheQueriesThatThisReleaseKnows) {
  const Diagnostics& diagnostics = impl_of(near_).services().diagnostics;
  EXPECT_EQ(take(diagnostics.answer(control::IntrospectionOp::dump)).find("engine \"near\""), 0u);
  EXPECT_EQ(take(diagnostics.answer(control::IntrospectionOp::metrics)), near_.metrics());
  EXPECT_TRUE(is(diagnostics.answer(static_cast<control::IntrospectionOp>(77)).status(),
                 Code::unsupported, "this release knows no question 77 of operators"));
}

}  // namespace diagnostics_test
}  // namespace linkspan::engine
