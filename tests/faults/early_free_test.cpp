// Tests owners that free the memory of a published region without deregister(): peers get a typed
// error, both processes go on, and other regions are served.
#include <sys/mman.h>

#include <thread>

#include "tests/conformance/engine_fixture.hpp"

namespace linkspan::test {
namespace early_free_test {

constexpr std::uint64_t kMiB = 1u << 20;
constexpr Block kAll{0, 0, kMiB};
constexpr const char* kHelper = "owner";

/// Maps memory below free room: the kernel gives out the highest room that fits, so what is freed
/// here stays free.
void* map_below_room() {
  constexpr std::uint64_t kRoom = 1024 * kMiB;
  auto* const all = static_cast<std::byte*>(
      ::mmap(nullptr, kMiB + kRoom, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (all == MAP_FAILED || ::munmap(all + kMiB, kRoom) != 0 ||
      ::mprotect(all, kMiB, PROT_READ | PROT_WRITE) != 0)
    throw std::runtime_error("mmap");
  return all;
}

/// An Engine with one region to free and one to keep.
class Owner {
 public:
  Result<Answer> handle(const Json& call) {
    const auto what = call.at("do").get<std::string>();
    if (what == "open") {
      must(engine_.listen());
      kept_ = take(engine_.allocate_shared(kMiB));
      must(engine_.publish("kept", kept_));
      return Answer{engine_.address(), {}};
    }
    if (what == "add") {
      const bool device = call.at("device").get<bool>();
      if (device) {
        buffer_ = take(Buffer::create(MemoryKind::device, kMiB));
      } else {
        host_ = map_below_room();
      }
      const RegionOptions options{.peers = {true, true, call.at("exclusive").get<bool>()}};
      must(engine_.publish(
          "freed", take(engine_.register_memory(device ? buffer_->data() : host_, kMiB, options))));
      return Answer{};
    }
    if (what == "free") {
      buffer_.reset();
      if (host_ != nullptr) ::munmap(host_, kMiB);
      return Answer{};
    }
    return Status(Code::unsupported, Scope::request, what);
  }

 private:
  std::unique_ptr<Buffer> buffer_;
  void* host_ = nullptr;
  Engine engine_ = take(Engine::open(engine_options("owner")));
  Region kept_;
};

void owner_main(Line& line) {
  Owner owner;
  line.serve([&](const Json& call, const std::vector<base::Fd>&) { return owner.handle(call); },
             [] { return false; });
}
const bool kRegistered = add_helper(kHelper, owner_main);

class EarlyFree : public ::testing::Test {
 protected:
  void SetUp() override {
    mine_ = Held::make(engine_, {.kind = "shared"});
    mine_.fill(1);
    const std::string address = take(owner_->line().call({{"do", "open"}})).value;
    peer_ = take(engine_.connect(address));
  }
  /// Checks that the owner lives and serves what it has kept.
  void TearDown() override {
    const RemoteRegion kept = take(peer_.lookup("kept"));
    EXPECT_EQ(finished(write(kept)).to_string(), "ok");
    EXPECT_EQ(mine_.difference(1), "");
  }
  void add(bool device, bool exclusive) {
    take(owner_->line().call({{"do", "add"}, {"device", device}, {"exclusive", exclusive}}));
  }
  void free() { take(owner_->line().call({{"do", "free"}})); }
  Result<Transfer> write(const RemoteRegion& to) {
    return peer_.write(mine_.region, to, std::span(&kAll, 1), {.deadline = 5s});
  }
  Result<Transfer> read(const RemoteRegion& from) {
    return peer_.read(mine_.region, from, std::span(&kAll, 1), {.deadline = 5s});
  }

  const std::unique_ptr<Child> owner_ = take(Child::spawn(kHelper));
  Held mine_;  // outlives the Engine
  Engine engine_ = take(Engine::open(engine_options("near")));
  Peer peer_;
};

TEST_F(EarlyFree, PrivateMemoryThatTheKernelCopies) {
  add(false, false);
  const Block few{0, 0, 4096};  // so little that it is not worth asking the owner
  const RemoteRegion freed = take(peer_.lookup("freed"));
  EXPECT_EQ(finished(peer_.write(mine_.region, freed, std::span(&few, 1))).to_string(), "ok");
  free();
  for (const auto& moved : {peer_.write(mine_.region, freed, std::span(&few, 1)),
                            peer_.read(mine_.region, freed, std::span(&few, 1))}) {
    const Status end = finished(moved);
    EXPECT_EQ(end.code(), Code::unreachable) << end.to_string();
  }
}

TEST_F(EarlyFree, PrivateMemoryThatItsOwnerCopies) {
  add(false, true);
  const RemoteRegion freed = take(peer_.lookup("freed"));
  EXPECT_EQ(finished(write(freed)).to_string(), "ok");
  free();
  for (const auto& moved : {write(freed), read(freed)}) {
    const Status end = finished(moved);
    EXPECT_EQ(end.code(), Code::unreachable) << end.to_string();
  }
}

TEST_F(EarlyFree, MemoryOfAGpu) {
  if (const Status status = need_gpus(1); !status.ok()) GTEST_SKIP() << status.to_string();
  Held local = Held::make(engine_, {.kind = "host"});  // nothing that the owner could map
  add(true, false);
  const auto move = [&](const RemoteRegion& to) {
    return finished(peer_.write(local.region, to, std::span(&kAll, 1)));
  };
  {
    const RemoteRegion mapped = take(peer_.lookup("freed"));
    EXPECT_EQ(move(mapped).to_string(), "ok");
    free();
    // Our mapping keeps the memory although its owner has no address of it any more. That looks the
    // same as memory in use.
    const Status end = move(mapped);
    EXPECT_NE(end.code(), Code::internal) << end.to_string();
  }
  // No process can open it after the free once our mapping has ended.
  const auto limit = base::Deadline::after(base::Clock::steady(), 5s);
  Status end;
  while (end.ok() && !limit.passed()) {
    std::this_thread::sleep_for(100ms);  // the one before is closed when nothing uses it
    const auto late = peer_.lookup("freed");
    end = late.ok() ? move(*late) : late.status();
  }
  EXPECT_FALSE(end.ok()) << "to memory that is freed";
  EXPECT_EQ(engine_.deregister(local.region).to_string(), "ok");
}

}  // namespace early_free_test
}  // namespace linkspan::test
