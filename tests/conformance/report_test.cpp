// Tests what an Engine reports to operators: dump(), metrics() and the line at connect.
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <sstream>

#include "tests/conformance/engine_fixture.hpp"
#include "tests/support/held_stream.hpp"

namespace linkspan::test {
namespace report_test {

using namespace std::chrono_literals;

constexpr std::uint64_t kMiB = 1u << 20;
constexpr Block kAll{.local_offset = 0, .remote_offset = 0, .bytes = kMiB};
const Kind &kHost = kKinds[3], &kShared = kKinds[4];

/// Returns the line that begins with `begin`; empty if there is none.
std::string line_with(const std::string& text, const std::string& begin) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(begin)) return line;
  return {};
}
/// Returns the line that contains `part`.
std::string line_of(const std::string& text, const std::string& part) {
  const auto at = text.find(part);
  if (at == std::string::npos) return {};
  const auto begin = text.rfind('\n', at) + 1;
  return text.substr(begin, text.find('\n', at) - begin);
}
/// Returns the beginning of a sample of Pair::engine: "linkspan_NAME{", its labels, and `labels`.
std::string sample_of(const std::string& name, const std::string& labels) {
  return "linkspan_" + name + "{engine=\"near\",pid=\"" + std::to_string(::getpid()) + "\"," +
         labels;
}
::testing::AssertionResult tells(const std::string& line,
                                 std::initializer_list<std::string> parts) {
  for (const std::string& part : parts)
    if (line.find(part) == std::string::npos)
      return ::testing::AssertionFailure() << '"' << part << "\" is not in: " << line;
  return ::testing::AssertionSuccess();
}

TEST(Report, ATransferThatAStoppedPeerExecutes) {
  Held here;  // outlives the Engine
  Pair pair;
  here = Held::make(pair.engine, {.kind = kShared.name});
  pair.far.add("there", {.kind = kHost.name, .peers = {true, true, true}});
  RemoteRegion there = pair.remote("there");
  pair.far.process().signal(SIGSTOP);
  const Transfer moved = take(pair.peer.write(here.region, there, std::span(&kAll, 1)));
  const std::string begin = "transfer " + std::to_string(moved.id()) + ":";
  EXPECT_TRUE(tells(line_with(pair.engine.dump(), begin),
                    {"write of 1048576 bytes", "to \"there\" of peer 1", " left",
                     "path memfd+cpu_threads", "1 in flight", "waits for the peer, which copies"}));
  EXPECT_TRUE(tells(line_with(pair.engine.dump(), "peer 1 "),
                    {"(pid " + std::to_string(pair.far.process().pid()) + "): up", "by local",
                     "1 not quiet", "imported \"there\" (host, 1048576 bytes)"}));
  EXPECT_TRUE(tells(line_of(pair.engine.dump(), ": shared memory, 1048576 bytes"),
                    {"region ", "peers may read and write", "1 transfers use it"}));
  EXPECT_EQ(moved.cancel().code(), Code::pending);
  EXPECT_TRUE(tells(line_with(pair.engine.dump(), begin),
                    {"cancel asked", "waits for the peer, which copies, to be quiet"}));
  EXPECT_TRUE(tells(
      line_with(pair.engine.metrics(), sample_of("transfers_outstanding", "peer=\"1\"")), {"} 1"}));
  pair.far.process().signal(SIGCONT);
  (void)moved.wait(10s);
  ASSERT_TRUE(moved.done()) << pair.engine.dump();
  EXPECT_EQ(line_with(pair.engine.dump(), "transfer "), "");
  there = {};
  const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
  const auto imported = [&] { return line_with(pair.engine.dump(), "peer 1 ").find("imported"); };
  while (imported() != std::string::npos && !limit.passed()) pair.engine.progress();
  EXPECT_EQ(imported(), std::string::npos);
}

TEST(Report, MessagesThatNobodyTakesAndHowManyMore) {
  Held here;  // outlives the Engine
  Pair pair;
  here = Held::loose(pair.engine, {.kind = kHost.name});
  std::vector<Transfer> all;
  for (std::uint64_t i = 0; i < 67; ++i)
    all.push_back(take(pair.peer.recv(100 + i, here.at(i), 1, {.deadline = 20s})));
  all.push_back(take(pair.peer.send(7, here.at(100), 1)));
  const std::string dump = pair.engine.dump();
  EXPECT_TRUE(tells(line_with(dump, "transfer " + std::to_string(all[0].id()) + ":"),
                    {"receive of 1 bytes, tag 100, unmatched", "waits for the peer to send"}));
  EXPECT_EQ(line_with(dump, "and "), "and 4 more transfers");
  for (const Transfer& each : all) (void)each.cancel();
  for (const Transfer& each : all) EXPECT_EQ(each.wait(10s).code(), Code::canceled);
  EXPECT_TRUE(
      tells(line_with(pair.engine.metrics(), sample_of("transfers_failed_total", "peer=\"1\"")),
            {"code=\"canceled\"} 68"}));
}

TEST(Report, KeysThatWereSentUntilTheRegionEnds) {
  Held here;  // outlives the Engine
  Pair pair;
  Engine other = take(Engine::open(engine_options("other\n")));
  here = Held::make(pair.engine, {.kind = kShared.name});
  must(pair.engine.publish("ours", here.region));
  must(pair.engine.listen("report"));
  const Peer peer = take(other.connect(pair.engine.address()));
  RemoteRegion there = take(peer.lookup("ours"));
  const std::string region = line_of(pair.engine.dump(), "\"ours\"");
  const std::string serial = region.substr(7, region.find(' ', 7) - 7);
  EXPECT_TRUE(tells(region, {"region " + serial + " \"ours\": shared memory, 1048576 bytes"}));
  EXPECT_TRUE(tells(line_with(pair.engine.dump(), "peer 2 \"other?\""),
                    {"was sent the keys of region " + serial}));
  there = {};
  EXPECT_EQ(pair.engine.deregister(here.region).to_string(), "ok");
  EXPECT_EQ(pair.engine.dump().find("was sent the keys"), std::string::npos);
}

TEST(Report, CountsByThePathThatExplainNames) {
  std::map<std::string, Held> here;  // outlive the Engine
  Pair pair;
  for (const Kind& kind : kKinds) {
    if (!kinds_here({kind}).ok()) continue;
    here[kind.name] = Held::make(pair.engine, {.kind = kind.name});
    pair.far.add(kind.name, {.kind = kind.name});
  }
  for (auto& [near, held] : here)
    for (auto& [far, unused] : here)
      for (const Op op : {Op::write, Op::read}) {
        const RemoteRegion there = pair.remote(far);
        const auto way = take(pair.peer.explain(op, held.region, there, 1, kMiB));
        const auto all = std::span(&kAll, 1);
        const std::string labels =
            std::string("op=\"") + (op == Op::write ? "write" : "read") + "\",path=\"" + way.path;
        const auto count = [&] {
          const std::string text = pair.engine.metrics();
          const auto at =
              text.find(sample_of("bytes_total", "peer=\"1\",name=\"far\"," + labels + "\"} "));
          return at == std::string::npos ? 0 : std::stoull(text.substr(text.find("} ", at) + 2));
        };
        const auto before = count();
        EXPECT_EQ(finished(op == Op::write ? pair.peer.write(held.region, there, all)
                                           : pair.peer.read(held.region, there, all))
                      .to_string(),
                  "ok");
        EXPECT_EQ(count() - before, kMiB) << labels << "\n" << pair.engine.metrics();
      }
  EXPECT_TRUE(
      tells(pair.engine.metrics(), {sample_of("imports_total", "peer=\"1\",name=\"far\"} ") +
                                    std::to_string(2 * here.size() * here.size())}));
}

TEST(Report, WhatGoneWithItsPeerIsStillCounted) {
  Held here;  // outlives the Engine
  Pair pair;
  here = Held::loose(pair.engine, {.kind = kHost.name});
  EXPECT_EQ(finished(pair.peer.recv(1, here.at(0), 1, {.deadline = 1ms})).code(), Code::timed_out);
  pair.far.process().kill();
  const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
  ASSERT_TRUE(is_down(pair.peer, limit));
  while (line_with(pair.engine.dump(), "peer 1 ") != "" && !limit.passed()) pair.engine.progress();
  EXPECT_TRUE(
      tells(pair.engine.metrics(),
            {sample_of("transfers_failed_total", "peer=\"gone\",name=\"\",code=\"timed_out\"} 1"),
             sample_of("transfers_started_total", "peer=\"gone\",name=\"\"} 1")}));
}

/// Returns the far end's log line about this side.
std::string greeting(const std::vector<std::string>& environment) {
  std::string path = "/tmp/linkspan-report-XXXXXX";
  const base::Fd made(::mkstemp(path.data()));
  std::vector<std::string> all = environment;
  all.insert(all.end(), {"LINKSPAN_LOG_LEVEL=INFO", kStderrFile + path});
  {
    Pair pair(all);
    pair.far.accept();
  }
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  ::unlink(path.c_str());
  return line_with(text.str(), "[INFO] peer 1 \"near\"");
}

TEST(Report, ALineAtConnectSaysWhatIsKnown) {
  const std::string us = "(pid " + std::to_string(::getpid()) + ", incarnation ";
  EXPECT_TRUE(tells(greeting({}), {us, "up by local (", "tried when a region is imported",
                                   "process_vm_readv, which works"}));
  EXPECT_TRUE(tells(greeting({kNoCrossProcess}), {us, "process_vm_readv does not work: "}));
}

class ReportGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    const Status status = kinds_here({kKinds[0]});
    if (!status.ok()) GTEST_SKIP() << status.to_string();
  }
};

TEST_F(ReportGpu, WhoWaitsForAStreamOfTheUsers) {
  Held on_gpu, on_cpu;  // outlive the Engine
  Pair pair;
  on_gpu = Held::make(pair.engine, {.kind = "device0"});
  on_cpu = Held::make(pair.engine, {.kind = "host"});
  pair.far.add("gpu", {.kind = "device0"});
  pair.far.add("cpu", {.kind = "shared"});
  const RemoteRegion gpu = pair.remote("gpu"), cpu = pair.remote("cpu");
  HeldStream stream;
  stream.hold();
  const auto all = std::span(&kAll, 1);
  const Transfer copied = take(pair.peer.write(on_gpu.region, gpu, all, {.after = stream.order()}));
  const Transfer held = take(pair.peer.write(on_cpu.region, cpu, all, {.after = stream.order()}));
  const std::string dump = pair.engine.dump();
  const auto line = [&](const Transfer& transfer) {
    return line_with(dump, "transfer " + std::to_string(transfer.id()) + ":");
  };
  EXPECT_TRUE(
      tells(line(copied), {"path cuda_ipc+", "the copy here, behind a stream of the user"}));
  EXPECT_TRUE(tells(line(held), {"path not chosen yet", "waits for a stream of the user's"}));
  stream.go_on();
  EXPECT_EQ(copied.wait(20s).to_string(), "ok");
  EXPECT_EQ(held.wait(20s).to_string(), "ok");
}

}  // namespace report_test
}  // namespace linkspan::test
