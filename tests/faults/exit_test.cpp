// Tests processes and threads that end while an Engine works, with their objects in every order:
// they end in order, and their peers lose them and nothing else.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <thread>

#include "tests/conformance/engine_fixture.hpp"

namespace linkspan::test {
namespace exit_test {

constexpr std::uint64_t kMiB = 1u << 20;
constexpr const char* kHelper = "leaver";

/// Objects that a program may have at namespace scope, created before main() and destroyed after
/// it.
struct Globals {
  std::optional<Engine> engine;
  Peer peer;
  Region region;
  RemoteRegion remote;
  std::vector<Transfer> transfers;
};
Globals globals;  // NOLINT(cert-err58-cpp)
Globals* never_destroyed = nullptr;

/// Starts long transfers: the regions are large, and the transfers follow one another.
void begin(Globals& all, const std::string& address, bool gpu) {
  EngineOptions options = engine_options("leaver");
  options.use_gpu = gpu;
  all.engine = take(Engine::open(options));
  all.region = take(all.engine->allocate_shared(8 * kMiB));
  must(all.engine->publish("left", all.region));
  all.peer = take(all.engine->connect(address));
  all.remote = take(all.peer.lookup("there"));
  for (std::uint64_t i = 0; i < 64; ++i) {
    const Block part = part_of(8 * kMiB, i, 64);
    all.transfers.push_back(take(all.peer.write(all.region, all.remote, std::span(&part, 1))));
  }
  all.transfers.push_back(take(all.peer.recv(1, all.region.data(), 64)));
}

/// Leaves by the destructors of globals, by those in another order, by none, or beside an atexit
/// handler that waits for its transfers.
Result<Answer> leave(const Json& call) {
  const auto how = call.at("do").get<std::string>();
  const auto address = call.at("address").get<std::string>();
  const bool gpu = call.at("gpu").get<bool>();
  if (how == "never destroyed") {
    never_destroyed = new Globals;  // NOLINT: threads of its Engine run until the very end
    begin(*never_destroyed, address, gpu);
  } else {
    begin(globals, address, gpu);
  }
  if (how == "engine first") {
    std::atexit([] { globals.engine.reset(); });
  } else if (how == "waits at exit") {
    std::atexit([] {
      for (const Transfer& each : globals.transfers) (void)each.wait(200ms);
    });
  } else if (how == "from a thread") {
    std::jthread([] { std::exit(0); }).join();
  }
  std::exit(0);
}
void leaver_main(Line& line) {
  line.serve([](const Json& call, const std::vector<base::Fd>&) { return leave(call); },
             [] { return false; });
}
const bool kRegistered = add_helper(kHelper, leaver_main);

class Exit : public ::testing::TestWithParam<const char*> {};

TEST_P(Exit, WithTransfersInFlight) {
  Held there;  // outlives the Engine
  Engine engine = take(Engine::open(engine_options("near")));
  there = Held::make(engine, {.kind = "shared", .bytes = 8 * kMiB});
  must(engine.publish("there", there.region));
  must(engine.listen());
  for (const bool gpu : {false, true}) {
    Peer peer;
    {
      const auto leaver = take(Child::spawn(kHelper));
      const auto said =
          leaver->line().call({{"do", GetParam()}, {"address", engine.address()}, {"gpu", gpu}});
      EXPECT_EQ(said.status().code(), Code::disconnected) << said.status().to_string();
      peer = take(engine.accept(10s));
    }  // it has ended with 0, by no signal, in time
    const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
    ASSERT_TRUE(is_down(peer, limit));
    EXPECT_EQ(peer.lookup("left").status().code(), Code::disconnected);
  }
  there.fill(3);
  EXPECT_EQ(engine.deregister(there.region, 10s).to_string(), "ok");
  EXPECT_EQ(there.difference(3), "") << "a late byte";
}

INSTANTIATE_TEST_SUITE_P(Every, Exit,
                         ::testing::Values("globals", "engine first", "never destroyed",
                                           "waits at exit", "from a thread"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::replace(name.begin(), name.end(), ' ', '_');
                           return name;
                         });

/// The handles of an Engine, dropped in each of their 120 orders while its transfers run.
TEST(EngineHandles, EndInAnyOrder) {
  Held there;  // outlives the Engines
  Engine server = take(Engine::open(engine_options("server")));
  there = Held::make(server, {.kind = "shared", .bytes = 8 * kMiB});
  must(server.publish("there", there.region));
  must(server.listen());
  std::array<int, 5> order{0, 1, 2, 3, 4};
  do {
    Globals all;
    begin(all, server.address(), false);
    const auto transfers = all.transfers;
    for (const int each : order) {
      if (each == 0) all.engine.reset();
      if (each == 1) all.peer = {};
      if (each == 2) all.region = {};
      if (each == 3) all.remote = {};
      if (each == 4) all.transfers.clear();
    }
    for (const Transfer& each : transfers) {
      EXPECT_TRUE(each.done()) << "the Engine has ended";
      EXPECT_TRUE(each.status().ok() || each.status().code() == Code::canceled);
      EXPECT_FALSE(each.cancel().code() == Code::pending);
    }
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_EQ(server.deregister(there.region, 10s).to_string(), "ok");
}

/// A thread that ends takes its handles with it, and what it began goes on.
TEST(EngineHandles, OfAThreadThatHasEnded) {
  Held there;  // outlives the Engine
  Engine server = take(Engine::open(engine_options("server")));
  there = Held::make(server, {.kind = "shared", .bytes = 8 * kMiB});
  must(server.publish("there", there.region));
  must(server.listen());
  Transfer last;
  {
    Globals all;
    std::jthread([&] {
      thread_local Globals mine;
      begin(mine, server.address(), true);
      last = mine.transfers[63];
      all.engine = std::move(mine.engine);
    }).join();
    EXPECT_EQ(last.wait(10s).to_string(), "ok");
    std::jthread([&] { all.engine.reset(); }).join();
  }
  EXPECT_EQ(last.status().to_string(), "ok");
  EXPECT_EQ(server.deregister(there.region, 10s).to_string(), "ok");
}

}  // namespace exit_test
}  // namespace linkspan::test
