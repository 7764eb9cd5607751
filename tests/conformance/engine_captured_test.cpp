// Tests prepared transfers inside a CUDA graph of the user: what each launch moves, counts and
// tells, and what launches do after the end of a region, a peer or the Engine.
#include <atomic>
#include <numeric>
#include <thread>

#include "tests/conformance/engine_fixture.hpp"
#include "tests/support/fake_cuda/controls.hpp"
#include "tests/support/user_graph.hpp"

namespace linkspan::test {
namespace engine_captured_test {

constexpr std::uint64_t kMiB = 1u << 20;
const std::vector<Block> kOdd = {
    {5, 3, kMiB / 2 + 1}, {700'001, 800'002, 1}, {900'000, 900'016, 77}};

/// Waits 10 s for a condition that another thread or the GPU makes true.
template <class Test>
bool comes(Test test) {
  const auto limit = base::Deadline::in(10s);
  while (!test() && !limit.passed()) std::this_thread::yield();
  return test();
}

struct CapturedCase {
  const char* name;
  Kind near, far;
  std::size_t gpu = 0;  // of the stream
};
void PrintTo(const CapturedCase& c, std::ostream* out) { *out << c.name; }
constexpr CapturedCase kCases[] = {{"device0_to_device1", kKinds[0], kKinds[1]},
                                   {"device0_to_device0", kKinds[0], kKinds[0]},
                                   {"device1_to_device0", kKinds[1], kKinds[0], 1},
                                   {"device0_to_shared", kKinds[0], kKinds[4]},
                                   {"pinned_to_device1", kKinds[2], kKinds[1]},
                                   {"shared_to_device0_by_1", kKinds[4], kKinds[0], 1}};

class EngineCaptured : public ::testing::TestWithParam<CapturedCase> {
 protected:
  void SetUp() override {
    if (const Status status = need_gpus(2); !status.ok()) GTEST_SKIP() << status.to_string();
    // Bring both GPUs up, as a program does before it captures.
    for (const char* kind : {"device0", "device1"})
      up_.push_back(Held::make(pair_.engine, {.kind = kind}));
    here_ = Held::make(pair_.engine, {.kind = GetParam().near.name});
    pair_.far.add("there", {.kind = GetParam().far.name});
    graph_ = std::make_unique<UserGraph>(GetParam().gpu);
  }
  CapturedTransfer capture(Op op, const Shape& shape) {
    const Prepared prepared =
        take(pair_.peer.prepare(op, here_.region, pair_.remote("there"), shape));
    return graph_->capture([&] { return take(prepared.capture(graph_->order())); });
  }

  std::vector<Held> up_;  // outlive the Engine
  Held here_;
  std::unique_ptr<UserGraph> graph_;
  Pair pair_;
};

TEST_P(EngineCaptured, MovesEveryByteAtEachLaunch) {
  for (const Op op : {Op::write, Op::read}) {
    const CapturedTransfer captured = capture(op, std::span<const Block>(kOdd));
    EXPECT_EQ(captured.bytes(), kMiB / 2 + 1 + 1 + 77);
    EXPECT_EQ(captured.completed(), 0u);
    for (std::uint64_t launch = 1; launch <= 3; ++launch) {
      const std::uint64_t ours = 10 * launch, theirs = ours + 1;
      here_.fill(ours);
      pair_.far.fill("there", theirs);
      graph_->launch();
      ASSERT_EQ(captured.wait(launch, 10s).to_string(), "ok");
      EXPECT_TRUE(captured.completed(launch));
      EXPECT_FALSE(captured.completed(launch + 1));
      std::vector<Expected> here_due, there_due;
      for (const Block& b : kOdd) {
        if (op == Op::write)
          there_due.push_back({b.remote_offset, ours, b.local_offset, b.bytes});
        else
          here_due.push_back({b.local_offset, theirs, b.remote_offset, b.bytes});
      }
      EXPECT_EQ(here_.difference(ours, here_due), "");
      EXPECT_EQ(pair_.far.difference("there", theirs, there_due), "");
    }
    EXPECT_EQ(captured.refused(), 0u);
    EXPECT_EQ(captured.status().to_string(), "ok");
    EXPECT_EQ(captured.close(10s).to_string(), "ok");
    graph_->destroy();
  }
}

TEST_P(EngineCaptured, MovesPages) {
  constexpr std::uint64_t kPage = 515, kPages = 2000;
  std::vector<std::uint32_t> there(kPages), here(kPages);
  std::iota(there.begin(), there.end(), 0);
  std::iota(here.rbegin(), here.rend(), 0);
  const CapturedTransfer captured = capture(Op::write, Pages{kPage, 1, 7, here, there});
  here_.fill(1);
  pair_.far.fill("there", 2);
  graph_->launch();
  ASSERT_EQ(captured.wait(1, 10s).to_string(), "ok");
  std::vector<Expected> due;
  for (std::uint64_t i = 0; i < kPages; ++i)
    due.push_back({7 + i * kPage, 1, 1 + (kPages - 1 - i) * kPage, kPage});
  EXPECT_EQ(pair_.far.difference("there", 2, due), "");
}

INSTANTIATE_TEST_SUITE_P(Every, EngineCaptured, ::testing::ValuesIn(kCases),
                         [](const auto& param) { return std::string(param.param.name); });

/// Reads from the peer's GPU into ours, so that what a launch moves is seen here, whatever has
/// become of the peer.
class EngineCapturedEnds : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Status status = need_gpus(2); !status.ok()) GTEST_SKIP() << status.to_string();
    pair_ = std::make_unique<Pair>();
    here_ = Held::make(pair_->engine, {.kind = "device0"});
    pair_->far.add("there", {.kind = "device1"});
    pair_->far.fill("there", 2);
    graph_ = std::make_unique<UserGraph>();
    capture({});
  }
  void TearDown() override {
    captured_ = {};
    pair_.reset();
    graph_.reset();
  }
  void capture(const CaptureOptions& options) {
    graph_->destroy();
    const Prepared prepared = take(
        pair_->peer.prepare(Op::read, here_.region, pair_->remote("there"), std::span(&kAll, 1)));
    captured_ = graph_->capture([&] { return take(prepared.capture(graph_->order(), options)); });
    expect_launches_copy();
  }
  void expect_launches_copy() {
    here_.fill(1);
    const std::uint64_t before = captured_.completed();
    graph_->launch();
    ASSERT_EQ(captured_.wait(before + 1, 10s).to_string(), "ok");
    EXPECT_EQ(here_.difference(1, {{0, 2, 0, kMiB}}), "");
  }
  void expect_launches_copy_nothing() {
    here_.fill(3);
    const std::uint64_t completed = captured_.completed(), refused = captured_.refused();
    graph_->launch();
    graph_->launch();
    graph_->synchronize();
    EXPECT_EQ(here_.difference(3), "");
    if (!captured_.valid()) return;
    EXPECT_EQ(captured_.completed(), completed);
    EXPECT_TRUE(comes([&] { return captured_.refused() == refused + 2; }));
  }

  static constexpr Block kAll{0, 0, kMiB};
  Held here_;  // outlives the Engine
  std::unique_ptr<UserGraph> graph_;
  std::unique_ptr<Pair> pair_;
  CapturedTransfer captured_;
};

TEST_F(EngineCapturedEnds, CopiesNothing_OnceClosed) {
  EXPECT_EQ(captured_.close(10s).to_string(), "ok");
  EXPECT_EQ(captured_.status().code(), Code::canceled);
  expect_launches_copy_nothing();
  EXPECT_EQ(captured_.wait(2, 1s).code(), Code::canceled);
  EXPECT_EQ(captured_.wait(1, 1s).to_string(), "ok") << "the one before";
  EXPECT_EQ(captured_.close(10s).to_string(), "ok");
}

TEST_F(EngineCapturedEnds, CopiesNothing_AfterThePeersDeath) {
  pair_->far.process().kill();
  ASSERT_TRUE(comes([&] { return !captured_.status().ok(); }));
  EXPECT_EQ(captured_.status().code(), Code::disconnected);
  EXPECT_EQ(captured_.close(10s).to_string(), "ok");
  expect_launches_copy_nothing();
  EXPECT_EQ(captured_.wait(2, 1s).code(), Code::disconnected);
}

TEST_F(EngineCapturedEnds, CopiesNothing_AfterDeregister) {
  EXPECT_EQ(pair_->engine.deregister(here_.region).to_string(), "ok");
  EXPECT_EQ(captured_.status().code(), Code::invalid_argument);
  expect_launches_copy_nothing();
}

TEST_F(EngineCapturedEnds, CopiesNothing_AfterInvalidate) {
  EXPECT_EQ(pair_->engine.invalidate(here_.region).to_string(), "ok");
  expect_launches_copy_nothing();
}

TEST_F(EngineCapturedEnds, CopiesNothing_AfterThePeerDeregisters) {
  EXPECT_EQ(pair_->far.deregister("there", 10s).to_string(), "ok");
  EXPECT_EQ(captured_.status().code(), Code::unreachable);
  expect_launches_copy_nothing();
}

TEST_F(EngineCapturedEnds, CopiesNothing_AfterThePeerWasClosed) {
  EXPECT_EQ(pair_->peer.close(10s).to_string(), "ok");
  EXPECT_EQ(captured_.status().code(), Code::canceled);
  expect_launches_copy_nothing();
}

TEST_F(EngineCapturedEnds, CopiesNothing_AfterTheEngineWasClosed) {
  EXPECT_EQ(pair_->engine.close(10s).to_string(), "ok");
  expect_launches_copy_nothing();
  EXPECT_EQ(captured_.wait(2, 1s).code(), Code::canceled);
}

TEST_F(EngineCapturedEnds, TheGraphOutlivesTheEngine) {
  captured_ = {};
  pair_.reset();
  expect_launches_copy_nothing();
  const Engine another = take(Engine::open(engine_options("another")));
  expect_launches_copy_nothing();
  graph_->destroy();
  const Engine third = take(Engine::open(engine_options("third")));  // frees what is left
}

TEST_F(EngineCapturedEnds, GivesItsRegionsBack_WhenTheGraphHasEnded) {
  captured_ = {};
  here_.fill(1);
  graph_->launch();  // needs no handle
  graph_->synchronize();
  EXPECT_EQ(here_.difference(1, {{0, 2, 0, kMiB}}), "");
  graph_->destroy();
  EXPECT_EQ(pair_->far.deregister("there", 10s).to_string(), "ok");
  EXPECT_EQ(pair_->engine.deregister(here_.region, 10s).to_string(), "ok");
}

TEST_F(EngineCapturedEnds, NotifiesOnceForEachLaunch_AfterItsData) {
  const std::string text = "a layer is there";
  capture({.notification = std::as_bytes(std::span(text.data(), text.size()))});
  for (int i = 0; i < 4; ++i) graph_->launch();
  EXPECT_EQ(pair_->far.notifications(5), std::vector<std::string>(5, text));
  EXPECT_EQ(captured_.completed(), 5u);
  EXPECT_EQ(captured_.close(10s).to_string(), "ok");
  graph_->launch();
  EXPECT_TRUE(comes([&] { return captured_.refused() == 1; }));
  must(pair_->peer.notify(std::as_bytes(std::span("last", 4))));
  EXPECT_EQ(pair_->far.notifications(1), std::vector<std::string>{"last"});
}

TEST_F(EngineCapturedEnds, ClosingDeliversEveryNotification_AlthoughThePeerHasNoRoom) {
  const std::string text(2000, 'n');  // the ring has room for a hundred or so
  capture({.notification = std::as_bytes(std::span(text.data(), text.size()))});
  for (int i = 0; i < 399; ++i) graph_->launch();
  ASSERT_EQ(captured_.wait(400, 10s).to_string(), "ok");
  std::jthread closing([&] { EXPECT_EQ(pair_->peer.close(20s).to_string(), "ok"); });
  std::size_t count = 0;
  while (count < 400) {
    const std::size_t more = pair_->far.notifications(1).size();
    if (more == 0) break;
    count += more;
  }
  EXPECT_EQ(count, 400u);
}

TEST_F(EngineCapturedEnds, CountsLaunchesOfTwoExecutables) {
  const Prepared prepared = take(
      pair_->peer.prepare(Op::read, here_.region, pair_->remote("there"), std::span(&kAll, 1)));
  UserGraph graph;
  const CapturedTransfer captured =
      graph.capture([&] { return take(prepared.capture(graph.order())); }, 2);
  for (int i = 0; i < 3; ++i) {
    graph.launch(0);
    graph.launch(1);
  }
  EXPECT_EQ(captured.wait(6, 10s).to_string(), "ok");
  EXPECT_EQ(captured.close(10s).to_string(), "ok");
}

TEST_F(EngineCapturedEnds, WaitsForAGpuThatDoesNotAnswer) {
  const FakeCuda fake = FakeCuda::find();
  if (!fake) GTEST_SKIP() << "needs the simulated driver";
  FakeCudaHold held(fake, 0);
  graph_->launch();
  EXPECT_EQ(captured_.close(30ms).code(), Code::pending);
  EXPECT_EQ(pair_->engine.deregister(here_.region, 30ms).code(), Code::busy);
  EXPECT_EQ(pair_->peer.close(30ms).code(), Code::pending);
  EXPECT_EQ(pair_->engine.close(30ms).code(), Code::pending);
  held.release();
  EXPECT_EQ(pair_->engine.close(10s).to_string(), "ok");
  graph_->synchronize();
  EXPECT_EQ(captured_.completed() + captured_.refused(), 2u);
}

/// Ends it while another thread launches all the time.
class EngineCapturedRaces : public EngineCapturedEnds {
 protected:
  template <class End>
  void expect_safe(End end) {
    std::atomic<bool> enough{false};
    const std::uint64_t before = captured_.completed();
    std::jthread launches([&] {
      while (!enough) graph_->launch();
    });
    ASSERT_TRUE(comes([&] { return captured_.completed() >= before + 3; }));
    EXPECT_EQ(end().to_string(), "ok");
    const std::uint64_t completed = captured_.completed(), refused = captured_.refused();
    here_.fill(3);  // it is the user's again
    EXPECT_TRUE(comes([&] { return captured_.refused() >= refused + 3; }));
    enough = true;
    launches.join();
    graph_->synchronize();
    EXPECT_EQ(captured_.completed(), completed);
    EXPECT_EQ(here_.difference(3), "");
  }
};

TEST_F(EngineCapturedRaces, ClosingIt) {
  expect_safe([&] { return captured_.close(10s); });
}
TEST_F(EngineCapturedRaces, DeregisteringItsRegion) {
  expect_safe([&] { return pair_->engine.deregister(here_.region, 10s); });
}
TEST_F(EngineCapturedRaces, DeregisteringThePeersRegion) {
  expect_safe([&] { return pair_->far.deregister("there", 10s); });
}
TEST_F(EngineCapturedRaces, ClosingThePeer) {
  expect_safe([&] { return pair_->peer.close(10s); });
}
TEST_F(EngineCapturedRaces, ClosingTheEngine) {
  expect_safe([&] { return pair_->engine.close(10s); });
}

TEST_F(EngineCapturedEnds, IsDescribedByDump) {
  EXPECT_NE(pair_->engine.dump().find("captured post of 1048576 bytes"), std::string::npos)
      << pair_->engine.dump();
}

class EngineCapturedRefusals : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Status status = need_gpus(2); !status.ok()) GTEST_SKIP() << status.to_string();
  }
  static Status refusal(const Prepared& prepared, std::initializer_list<const char*> words,
                        std::size_t gpu = 0) {
    UserGraph graph(gpu);
    const Status status = graph.capture([&] { return prepared.capture(graph.order()).status(); });
    for (const char* word : words)
      EXPECT_NE(status.what().find(word), std::string::npos) << status.to_string();
    return status;
  }
  static constexpr Block kAll{0, 0, kMiB};
};

TEST_F(EngineCapturedRefusals, NameWhatTheGpuDoesNotMap) {
  Held gpu, pageable;
  Pair pair;
  gpu = Held::make(pair.engine, {.kind = "device0"});
  pageable = Held::make(pair.engine, {.kind = "host"});
  pair.far.add("host", {.kind = "host"});
  pair.far.add("there", {.kind = "device1"});
  const auto prepared = [&](const Held& held, const char* remote) {
    return take(
        pair.peer.prepare(Op::write, held.region, pair.remote(remote), std::span(&kAll, 1)));
  };
  EXPECT_EQ(refusal(prepared(gpu, "host"), {"maps both memories", "takes \""}).code(),
            Code::unsupported);
  EXPECT_EQ(refusal(prepared(pageable, "there"), {"host memory without a pin"}).code(),
            Code::unsupported);
  // The Engine has not brought this stream's GPU up.
  const Status idle = refusal(prepared(gpu, "there"), {}, 1);
  EXPECT_EQ(idle.code(), Code::unsupported) << idle.to_string();
}

TEST_F(EngineCapturedRefusals, NameTheWire) {
  Held gpu;
  Pair pair({std::string(kListenAt) + "tcp:127.0.0.1:0"});
  gpu = Held::make(pair.engine, {.kind = "device0"});
  pair.far.add("there", {.kind = "device1"});
  const Prepared prepared =
      take(pair.peer.prepare(Op::write, gpu.region, pair.remote("there"), std::span(&kAll, 1)));
  EXPECT_EQ(refusal(prepared, {"tcp maps nothing", "takes \"tcp"}).code(), Code::unsupported);
}

TEST_F(EngineCapturedRefusals, AskForACaptureAndAStream) {
  Held gpu;
  Pair pair;
  gpu = Held::make(pair.engine, {.kind = "device0"});
  pair.far.add("there", {.kind = "device1", .peers = {.read = true, .write = false}});
  const RemoteRegion there = pair.remote("there");
  const Prepared prepared =
      take(pair.peer.prepare(Op::read, gpu.region, there, std::span(&kAll, 1)));
  const UserGraph graph;
  const Status idle = prepared.capture(graph.order()).status();
  EXPECT_EQ(idle.code(), Code::invalid_argument);
  EXPECT_NE(idle.what().find("captures no CUDA graph"), std::string::npos) << idle.what();
  EXPECT_EQ(prepared.capture({}).status().code(), Code::invalid_argument);
  EXPECT_EQ(Prepared().capture(graph.order()).status().code(), Code::invalid_argument);
  EXPECT_EQ(CapturedTransfer().wait(1, 0s).code(), Code::invalid_argument);
  EXPECT_EQ(CapturedTransfer().completed(), 0u);
  const Prepared forbidden =
      take(pair.peer.prepare(Op::write, gpu.region, there, std::span(&kAll, 1)));
  EXPECT_EQ(refusal(forbidden, {"does not permit to write"}).code(), Code::permission_denied);
  const std::vector<std::byte> huge(1u << 20);
  UserGraph other;
  const Status large = other.capture(
      [&] { return prepared.capture(other.order(), {.notification = huge}).status(); });
  EXPECT_EQ(large.code(), Code::invalid_argument) << large.to_string();
  EXPECT_EQ(pair.engine.close(5s).to_string(), "ok");
  EXPECT_EQ(refusal(prepared, {}).code(), Code::canceled);
}

TEST_F(EngineCapturedRefusals, AllPairsAreOneNode) {
  constexpr std::size_t kPairs = 5;
  std::vector<Held> here;
  Pair pair;
  std::vector<Region> local;
  std::vector<RemoteRegion> remote;
  for (std::size_t i = 0; i < kPairs; ++i) {
    here.push_back(Held::make(pair.engine, {.kind = "device0"}));
    here.back().fill(i);
    const std::string name = std::to_string(i);
    pair.far.add(name, {.kind = i % 2 == 0 ? "device1" : "shared"});
    pair.far.fill(name, 10);
    local.push_back(here.back().region);
    remote.push_back(pair.remote(name));
  }
  const std::uint32_t list[] = {3, 1, 2};
  const Prepared prepared =
      take(pair.peer.prepare(Op::write, local, remote, Pages{4096, 0, 0, list, list}));
  UserGraph graph;
  const CapturedTransfer captured =
      graph.capture([&] { return take(prepared.capture(graph.order())); });
  graph.launch();
  EXPECT_EQ(captured.wait(1, 10s).to_string(), "ok");
  for (std::size_t i = 0; i < kPairs; ++i)
    EXPECT_EQ(pair.far.difference(std::to_string(i), 10, {{4096, i, 4096, 3 * 4096}}), "");
  EXPECT_EQ(captured.close(10s).to_string(), "ok");
}

}  // namespace engine_captured_test
}  // namespace linkspan::test
