// Tests a process that runs out of file descriptors, of address space or of lockable memory: each
// call reports that at once, nothing is lost or kept, and all goes on when there is room again.
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <latch>
#include <thread>

#include "tests/conformance/engine_fixture.hpp"
#include "tests/support/few_fds.hpp"
#include "tests/support/sanitizer_order.hpp"
#include "tests/support/sanitizers.hpp"

namespace linkspan::test {
namespace limits_test {

constexpr std::uint64_t kMiB = 1u << 20;
constexpr Block kAll{0, 0, kMiB};
constexpr Duration kAtOnce = 10s;

class FdLimit : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(LINKSPAN_ADDRESS_SANITIZER)
    GTEST_SKIP() << "needs a build without sanitizers: the one of vptrs asks by a pipe of its own";
#endif
    here_ = Held::make(pair_.engine, {.kind = "shared"});
    must(pair_.engine.publish("here", here_.region));
    pair_.far.add("there", {.kind = "shared"});
    here_.fill(1);
    pair_.far.fill("there", 2);
  }
  /// Checks that peers that were connected before move bytes, and a new one too.
  void TearDown() override {
    if (IsSkipped()) return;
    move(pair_.peer, pair_.remote("there"));
    FarEngine next;
    next.add("there", {.kind = "shared"});
    const Peer peer = take(pair_.engine.connect(next.address()));
    move(peer, take(peer.lookup("there")));
  }
  void move(const Peer& peer, const RemoteRegion& to) {
    EXPECT_EQ(finished(peer.write(here_.region, to, std::span(&kAll, 1))).to_string(), "ok");
  }
  /// Runs `step` with room for none, one, two and so on, until there is enough. Returns how often
  /// it was refused.
  template <class Step>
  static int refusals(Step step) {
    for (std::size_t spare = 0; spare < 64; ++spare) {
      test::FewFds few(spare);
      const base::Time begin = base::Clock::steady().now();
      const Status status = step();
      EXPECT_LT(base::Clock::steady().now() - begin, kAtOnce) << spare << " fds";
      if (status.ok()) return static_cast<int>(spare);
      EXPECT_EQ(status.code(), Code::system) << spare << " fds: " << status.to_string();
      EXPECT_EQ(few.kept(), "") << "of " << spare;
    }
    ADD_FAILURE() << "never enough";
    return -1;
  }

  Held here_;  // outlives the Engine
  Pair pair_;
};

TEST_F(FdLimit, OpenAndListen) {
  EXPECT_GT(refusals([] { return Engine::open(engine_options("poor")).status(); }), 3);
  EXPECT_GE(refusals([&] { return pair_.engine.listen("poor"); }), 1);
  // Again and again: the name moves, and the old one is gone.
  ASSERT_EQ(pair_.engine.listen("rich").to_string(), "ok");
  const auto limit = base::Deadline::after(base::Clock::steady(), kAtOnce);
  Status poor;
  do poor = pair_.engine.connect("poor", 20ms).status();
  while (poor.code() != Code::unreachable && !limit.passed());
  EXPECT_EQ(poor.code(), Code::unreachable) << poor.to_string();
}

TEST_F(FdLimit, Connect) {
  FarEngine other;
  EXPECT_GE(refusals([&] { return pair_.engine.connect(other.address(), 5s).status(); }), 2);
}

TEST_F(FdLimit, Memory) {
  EXPECT_GE(refusals([&] { return pair_.engine.allocate_shared(kMiB).status(); }), 1);
}

TEST_F(FdLimit, LookupHereAndThere) {
  EXPECT_GE(refusals([&] { return pair_.peer.lookup("there").status(); }), 2);
  must(pair_.engine.listen());
  FarEngine far;
  far.connect(pair_.engine.address());
  far.add("local", {.kind = "host"});
  const auto asks = [&] { return far.explain("local", "here", kMiB).status(); };
  const Status refused = [&] {
    test::FewFds few(0);
    return asks();
  }();
  // The helper throws what lookup() has answered.
  EXPECT_NE(refused.what().find("system"), std::string::npos) << refused.to_string();
  EXPECT_EQ(asks().to_string(), "ok");
}

TEST_F(FdLimit, AnOfferOfWhomWeCopyFor) {
  Held mine;
  Engine engine = take(Engine::open(engine_options("executor")));
  must(engine.listen());
  mine = Held::make(engine, {.kind = "host", .peers = {true, true, true}});
  mine.fill(1);
  must(engine.publish("mine", mine.region));
  FarEngine far;
  far.connect(engine.address());
  far.add("source", {.kind = "shared"});
  far.fill("source", 3);
  ASSERT_TRUE(far.explain("source", "mine", kMiB).ok());  // looks it up
  {
    test::FewFds few(0);
    far.start("source", "mine", 1);
    EXPECT_EQ(far.ends(), std::vector<std::string>{"system"});
    EXPECT_EQ(few.kept(), "");
  }
  far.start("source", "mine", 1);
  EXPECT_EQ(far.ends(), std::vector<std::string>{"ok"});
  test::order_accesses(engine);
  EXPECT_EQ(mine.difference(1, {{0, 3, 0, kMiB}}), "");
  EXPECT_EQ(engine.close(5s).to_string(), "ok");
}

TEST_F(FdLimit, AMessageThatComesWithItsKey) {
  pair_.far.accept();
  Held room = Held::loose(pair_.engine, {.kind = "host"});
  pair_.far.add_loose("sent", {.kind = "host"});
  pair_.far.fill("sent", 4);
  room.fill(5);
  const auto exchange = [&](bool poor) {
    const auto received = pair_.peer.recv(1, room.at(0), kMiB, {.deadline = 5s});
    std::optional<test::FewFds> few;
    if (poor) few.emplace(0);
    const auto number = take(
        pair_.far.post({.sends = true, .name = "sent", .bytes = kMiB, .tag = 1, .deadline = 5s}));
    const Status here = finished(received);
    EXPECT_EQ(pair_.far.end(number).code == "ok", here.ok());
    return here;
  };
  EXPECT_EQ(exchange(true).code(), Code::system);
  EXPECT_EQ(exchange(false).to_string(), "ok");
  {
    test::FewFds few(0);  // memory of a message needs no descriptor
    const auto posted = pair_.peer.recv(1, room.at(0), kMiB, {.deadline = 5s});
    ASSERT_EQ(posted.status().to_string(), "ok");
    (void)posted->cancel();
    EXPECT_EQ(finished(posted).code(), Code::canceled);
  }
  EXPECT_EQ(room.difference(5, {{0, 4, 0, kMiB}}), "");
}

TEST_F(FdLimit, WhoConnectsToUsWaitsAndNobodySpins) {
  must(pair_.engine.listen());
  FarEngine far;
  const auto cpu = [] {
    rusage used{};
    ::getrusage(RUSAGE_SELF, &used);
    return std::chrono::seconds(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           std::chrono::microseconds(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
  };
  std::optional<std::jthread> connecting;
  {
    test::FewFds few(0);
    connecting.emplace([&] { EXPECT_NO_THROW(far.connect(pair_.engine.address())); });
    const auto begin = cpu();
    EXPECT_EQ(pair_.engine.accept(500ms).status().code(), Code::timed_out);
    // The thread that connects looks for its answer each millisecond; a loop takes all 500.
    EXPECT_LT(cpu() - begin, 100ms);
  }
  EXPECT_TRUE(pair_.engine.accept(10s).ok());
}

TEST(AddressSpaceLimit, ThreadsAndMappingsAreRefused) {
#if defined(LINKSPAN_SANITIZER)
  GTEST_SKIP() << "needs a build without sanitizers, which need address space themselves";
#endif
  constexpr std::uint64_t kLarge = 64 * kMiB;
  Pair pair;
  pair.far.add("large", {.kind = "shared", .bytes = kLarge});
  Held here = Held::make(pair.engine, {.kind = "host"});
  here.fill(3);
  pair.far.fill("large", 4);
  EngineOptions options = engine_options("poor");
  options.use_gpu = false;  // what a driver does without memory is its own
  {
    // These threads use up the stacks that the C library keeps of ended threads.
    std::latch end(1);
    std::vector<std::jthread> others;
    for (int i = 0; i < 16; ++i) others.emplace_back([&] { end.wait(); });
    const std::shared_ptr<void> ending(nullptr, [&](void*) { end.count_down(); });
    std::uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const test::Limit limit(RLIMIT_AS,
                            pages * static_cast<std::uint64_t>(::getpagesize()) + 4 * kMiB);
    const Status open = Engine::open(options).status();
    EXPECT_EQ(open.code(), Code::system) << open.to_string();
    EXPECT_EQ(pair.engine.allocate_shared(kLarge).status().code(), Code::system);
    // Memory that cannot be mapped takes another path, or the error says that there is none.
    const RemoteRegion large = pair.remote("large");
    const Status moved = finished(pair.peer.write(here.region, large, std::span(&kAll, 1)));
    EXPECT_TRUE(moved.ok() || moved.code() == Code::system || moved.code() == Code::unreachable)
        << moved.to_string();
  }
  const RemoteRegion large = pair.remote("large");
  EXPECT_EQ(finished(pair.peer.write(here.region, large, std::span(&kAll, 1))).to_string(), "ok");
  EXPECT_EQ(pair.far.difference("large", 4, {{0, 3, 0, kMiB}}), "");
  EXPECT_TRUE(Engine::open(options).ok());
  EXPECT_EQ(pair.engine.deregister(here.region).to_string(), "ok");
}

TEST(LockedMemoryLimit, PinningIsDoneOrRefusedAndTheRestWorks) {
  std::vector<std::byte> memory(kMiB);
  Pair pair;
  pair.far.add("there", {.kind = "shared"});
  pair.far.fill("there", 2);
  const test::Limit limit(RLIMIT_MEMLOCK, 0);
  auto region = pair.engine.register_memory(memory.data(), kMiB, {.pin = true});
  if (!region.ok()) {
    EXPECT_NE(region.status().code(), Code::internal) << region.status().to_string();
    region = pair.engine.register_memory(memory.data(), kMiB);
  }
  ASSERT_TRUE(region.ok()) << region.status().to_string();
  put_pattern(memory, 7, 0);
  EXPECT_EQ(
      finished(pair.peer.write(*region, pair.remote("there"), std::span(&kAll, 1))).to_string(),
      "ok");
  EXPECT_EQ(pair.engine.deregister(*region).to_string(), "ok");
}

}  // namespace limits_test
}  // namespace linkspan::test
