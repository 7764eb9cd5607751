// Tests small copies that the submitting thread makes itself, and what a peer can do to that
// thread.
#include <poll.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <future>

#include "base/sealed_memory.hpp"
#include "tests/conformance/engine_fixture.hpp"
#include "tests/support/silent_pages.hpp"

namespace linkspan::test {
namespace callers_copy_test {

constexpr std::uint64_t kBytes = 512u << 10;
constexpr Block kWord{8, 16, 8};

/// Returns whether this process has a thread that copies.
bool has_executor() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::ifstream(task.path() / "comm") >> name;
    if (name == "ls-copy") return true;
  }
  return false;
}

/// Memory here and at a peer.
struct Between {
  Between(const std::string& near, const std::string& far) {
    here = Held::make(pair.engine, {.kind = near, .bytes = kBytes});
    pair.far.add("there", {.kind = far, .bytes = kBytes});
    there = pair.remote("there");
  }
  Status write(const Block& block) {
    return finished(pair.peer.write(here.region, there, std::span(&block, 1)));
  }

  Held here;  // outlives the Engine
  Pair pair;
  RemoteRegion there;
};

/// Moves blocks of many sizes both ways between memory of these kinds, and checks all bytes.
void move_all_sizes(const std::string& near, const std::string& far) {
  Between between(near, far);
  auto& [here, pair, there] = between;
  std::uint64_t seed = 1;
  for (const std::uint64_t bytes : {8u, 1u, 4095u, 4096u, 131071u, 131072u, 131073u, 3u})
    for (const std::uint64_t count : {1u, 3u}) {
      std::vector<Block> blocks;
      std::vector<Expected> expected;
      for (std::uint64_t i = 0; i < count; ++i) {
        blocks.push_back({i * (bytes + 5) + 1, i * (bytes + 9) + 7, bytes});
        expected.push_back({blocks[i].remote_offset, seed, blocks[i].local_offset, bytes});
      }
      here.fill(seed);
      pair.far.fill("there", seed + 1);
      ASSERT_EQ(finished(pair.peer.write(here.region, there, blocks)).to_string(), "ok");
      EXPECT_EQ(pair.far.difference("there", seed + 1, expected), "") << bytes << " x " << count;
      here.fill(seed + 2);
      for (std::uint64_t i = 0; i < count; ++i)
        expected[i] = {blocks[i].local_offset, seed + 1, blocks[i].remote_offset, bytes};
      pair.far.fill("there", seed + 1);
      ASSERT_EQ(finished(pair.peer.read(here.region, there, blocks)).to_string(), "ok");
      EXPECT_EQ(here.difference(seed + 2, expected), "") << bytes << " x " << count;
      seed += 3;
    }
}

TEST(CallersCopy, MovesEachSizeAcrossProcesses) { move_all_sizes("host", "host"); }
TEST(CallersCopy, MovesEachSizeOfMappedMemory) { move_all_sizes("host", "shared"); }
TEST(CallersCopy, MovesEachSizeOfSharedMemory) { move_all_sizes("shared", "host"); }
TEST(CallersCopy, MovesEachSizeBetweenSharedMemories) { move_all_sizes("shared", "shared"); }

TEST(CallersCopy, OfTwoThreadsAtOneRegionEachEnds) {
  Between between("host", "host");
  const auto write_many = [&](std::uint64_t at) {
    Status status;
    for (int i = 0; i < 2000 && status.ok(); ++i) status = between.write({at, at, 8});
    return status;
  };
  auto other = std::async(std::launch::async, write_many, 64);
  EXPECT_EQ(write_many(0).to_string(), "ok");
  EXPECT_EQ(other.get().to_string(), "ok");
}

TEST(CallersCopy, WakesNoExecutorForMappedMemory) {
  Between between("host", "shared");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(between.write(kWord).to_string(), "ok");
  EXPECT_FALSE(has_executor());
}

// ---- a peer that was prompt, and then answers no page fault ------------------------------------

constexpr const char *kOwner = "owner_that_falls_silent", *kInitiator = "initiator_of_small_writes";

void owner_main(Line& line) {
  const base::Fd file = take(base::make_memfd(kOwner, kBytes));
  SilentPages anonymous(kBytes), of_file(kBytes, file.get());
  Engine engine = take(Engine::open(engine_options(kOwner)));
  must(engine.listen());
  const Region first = take(engine.register_memory(anonymous.at(), kBytes)),
               second = take(engine.register_memory(of_file.at(), kBytes));
  must(engine.publish("anonymous", first));
  must(engine.publish("of a file system", second));
  line.serve(
      [&](const Json& call, const std::vector<base::Fd>&) -> Result<Answer> {
        if (call.at("do") == "address") return Answer{engine.address(), {}};
        return Answer{anonymous.fall_silent() && of_file.fall_silent(), {}};
      },
      [] { return false; });
}
const bool kOwnerAdded = add_helper(kOwner, owner_main);

/// Memory here, and a region of that peer.
struct SmallWrites {
  SmallWrites(Engine& engine, const std::string& address, const std::string& name = "anonymous",
              const std::string& near = "host")
      : here(Held::make(engine, {.kind = near})),
        peer(take(engine.connect(address))),
        there(take(peer.lookup(name))) {}
  void be_prompt() {
    for (int i = 0; i < 3; ++i) must(write().wait(10s));
  }
  Transfer write() { return take(peer.write(here.region, there, std::span(&kWord, 1))); }

  Held here;
  Peer peer;
  RemoteRegion there;
};

void initiator_main(Line& line) {
  Engine engine = take(Engine::open(engine_options(kInitiator)));
  std::optional<SmallWrites> writes;
  line.serve(
      [&](const Json& call, const std::vector<base::Fd>&) -> Result<Answer> {
        if (call.at("do") == "connect")
          writes.emplace(engine, call.at("address").get<std::string>()).be_prompt();
        else
          (void)writes->write();
        return Answer{};
      },
      [] { return false; });
}
const bool kInitiatorAdded = add_helper(kInitiator, initiator_main);

class CallersCopySilent : public ::testing::Test {
 protected:
  /// Shows that a silent peer holds the thread that waits for a small write from memory of that
  /// kind, and nobody else.
  void hold_a_caller(const std::string& near);
  void fall_silent() {
    if (!take(owner_->line().call({{"do", "fall silent"}})).value.get<bool>())
      GTEST_SKIP() << "needs root, to handle faults of system calls";
  }

  const std::unique_ptr<Child> owner_ = take(Child::spawn(kOwner));
  const std::string address_ =
      take(owner_->line().call({{"do", "address"}})).value.get<std::string>();
};

void CallersCopySilent::hold_a_caller(const std::string& near) {
  Between others(near, "host");
  Engine& engine = others.pair.engine;
  SmallWrites writes(engine, address_, "anonymous", near);
  writes.be_prompt();
  fall_silent();
  if (IsSkipped()) return owner_->kill();
  auto held = std::async(std::launch::async, [&] { return writes.write().wait(10s); });
  EXPECT_EQ(held.wait_for(300ms), std::future_status::timeout) << "an executor copies";

  for (int i = 0; i < 20; ++i) EXPECT_EQ(others.write(kWord).to_string(), "ok");
  EXPECT_NE(engine.dump().find("not quiet"), std::string::npos) << engine.dump();
  const auto begin = base::Clock::steady().now();
  EXPECT_FALSE(writes.peer.close(200ms).ok()) << "a transfer is in flight";
  EXPECT_LT(base::Clock::steady().now() - begin, 2s);

  owner_->kill();
  ASSERT_EQ(held.wait_for(5s), std::future_status::ready);
  EXPECT_NE(held.get().code(), Code::pending);
}

TEST_F(CallersCopySilent, HoldsTheCallerUntilThePeerIsDead_AndNobodyElse) { hold_a_caller("host"); }

TEST_F(CallersCopySilent, HoldsAWaiterForGpuMemoryUntilThePeerIsDead_AndNobodyElse) {
  if (const Status status = kinds_here({kKinds[0]}); !status.ok())
    GTEST_SKIP() << status.to_string();
  hold_a_caller(kKinds[0].name);
}

TEST_F(CallersCopySilent, HoldsNoCallerWhoseRegionMayWaitForOthers) {
  Engine engine = take(Engine::open(engine_options("initiator")));
  SmallWrites first(engine, address_);  // has not been prompt yet
  SmallWrites of_file(engine, address_, "of a file system");
  of_file.be_prompt();
  fall_silent();
  if (IsSkipped()) return owner_->kill();
  std::vector<Transfer> transfers;
  for (SmallWrites* writes : {&first, &of_file}) {
    const auto begin = base::Clock::steady().now();
    transfers.push_back(writes->write());
    EXPECT_EQ(transfers.back().wait(100ms).code(), Code::pending);
    EXPECT_LT(base::Clock::steady().now() - begin, 2s);
  }
  owner_->kill();
  for (const Transfer& each : transfers) {
    (void)each.wait(5s);
    EXPECT_TRUE(each.done());
  }
}

TEST_F(CallersCopySilent, ASignalEndsAProcessWhoseCallerIsHeld) {
  const auto initiator = take(Child::spawn(kInitiator));
  take(initiator->line().call({{"do", "connect"}, {"address", address_}}));
  fall_silent();
  if (IsSkipped()) return owner_->kill();
  auto held = std::async(std::launch::async, [&] {
    return initiator->line().call({{"do", "write"}}).status();
  });
  EXPECT_EQ(held.wait_for(300ms), std::future_status::timeout);
  initiator->signal(SIGTERM);
  pollfd ended{.fd = initiator->pidfd(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&ended, 1, 5000), 1) << "the signal waits for the peer";
  initiator->kill();
  EXPECT_FALSE(held.get().ok());
  owner_->kill();
}

}  // namespace callers_copy_test
}  // namespace linkspan::test
