// Tests unusual memory and peers: managed memory, pointers from CUDA IPC, two Engines in one
// process, two processes on one GPU.
#include <map>
#include <optional>

#include "api/c/handles.hpp"
#include "tests/conformance/engine_fixture.hpp"

namespace linkspan::test {
namespace engine_memory_test {

constexpr std::uint64_t kMiB = 1u << 20;

class EngineMemory : public ::testing::Test {
 protected:
  explicit EngineMemory(unsigned gpus = 1) : gpus_(gpus) {}
  void SetUp() override {
    const Status status = need_gpus(gpus_);
    if (!status.ok()) GTEST_SKIP() << status.to_string();
  }

 private:
  const unsigned gpus_;
};

TEST_F(EngineMemory, OfCudaManagedKindIsRefusedWithTheRemedy) {
  Engine engine = take(Engine::open(engine_options("near")));
  const cuda::Device& device = *take(topology()->activate(topology()->devices()[0].uuid));
  const cuda::DeviceScope scope = take(device.enter());
  cuda::CUdeviceptr managed = 0;
  ASSERT_EQ(device.driver().cuMemAllocManaged(&managed, kMiB, cuda::CU_MEM_ATTACH_GLOBAL),
            cuda::CUDA_SUCCESS);
  auto* const base = reinterpret_cast<std::byte*>(managed);  // NOLINT(*-int-to-ptr)
  for (const bool pin : {false, true}) {
    for (const auto& [offset, bytes] :
         {std::pair{0ull, kMiB}, {4097ull, 100ull}, {kMiB - 1, 1ull}}) {
      const Status status = engine.register_memory(base + offset, bytes, {.pin = pin}).status();
      EXPECT_EQ(status.code(), Code::unsupported) << status.to_string();
      EXPECT_NE(status.what().find("managed"), std::string::npos) << status.what();
      EXPECT_NE(status.what().find("cudaMalloc"), std::string::npos) << status.what();
    }
  }
  EXPECT_EQ(device.driver().cuMemFree(managed), cuda::CUDA_SUCCESS);
}

TEST_F(EngineMemory, NamesTheGpuThatHoldsIt) {
  Held on_gpu, pinned;  // outlive the Engine
  Engine engine = take(Engine::open(engine_options("near")));
  on_gpu = Held::make(engine, {.kind = "device0"});
  pinned = Held::make(engine, {.kind = "pinned"});
  const GpuUuid due = topology()->devices()[0].uuid;
  EXPECT_EQ(on_gpu.region.gpu(), due);
  EXPECT_EQ(pinned.region.gpu(), GpuUuid{});
  EXPECT_EQ(Region().gpu(), GpuUuid{});
  const linkspan_region of_c{on_gpu.region};
  GpuUuid told{};
  linkspan_region_gpu(&of_c, reinterpret_cast<std::uint8_t*>(told.data()));
  EXPECT_EQ(told, due);
}

/// Memory of the peer that this process has opened by itself, and registers as its own.
class EngineImported : public EngineMemory {
 protected:
  EngineImported() : EngineMemory(2) {}
  void SetUp() override {
    EngineMemory::SetUp();
    if (IsSkipped()) return;
    pair_ = std::make_unique<Pair>();
    must(pair_->engine.listen());
    far().add("owner", {.kind = "device1"});
    const auto [handle, offset] = far().ipc("owner");
    const cuda::Device& device = *take(topology()->activate(topology()->devices()[0].uuid));
    opened_.emplace(take(cuda::IpcMapping::open(device, handle)));
    auto* const pointer =
        reinterpret_cast<void*>(opened_->base() + offset);  // NOLINT(*-int-to-ptr)
    region_ = take(pair_->engine.register_memory(pointer, kMiB));
    must(pair_->engine.publish("imported", region_));
    EXPECT_EQ(region_.kind(), MemoryKind::device);
  }
  void TearDown() override {
    if (IsSkipped()) return;
    const Region region = std::exchange(region_, {});
    pair_.reset();  // before the mapping is closed
  }
  FarEngine& far() { return pair_->far; }

  std::optional<cuda::IpcMapping> opened_;
  std::unique_ptr<Pair> pair_;
  Region region_;
};

TEST_F(EngineImported, MemoryGoesToAndFromWhatThisSideMaps) {
  for (const std::string there : {"device0", "device1", "shared"}) {
    SCOPED_TRACE(there);
    far().add(there, {.kind = there});
    const RemoteRegion remote = pair_->remote(there);
    const Block block{7, 1001, kMiB - 1001};
    const auto moved = std::span(&block, 1);
    far().fill("owner", 1);
    far().fill(there, 2);
    EXPECT_EQ(finished(pair_->peer.write(region_, remote, moved)).to_string(), "ok");
    EXPECT_EQ(far().difference(there, 2, {{1001, 1, 7, kMiB - 1001}}), "");
    far().fill(there, 3);
    EXPECT_EQ(finished(pair_->peer.read(region_, remote, moved)).to_string(), "ok");
    EXPECT_EQ(far().difference("owner", 1, {{7, 3, 1001, kMiB - 1001}}), "");
  }
}

TEST_F(EngineImported, MemoryGoesBackToItsOwner) {
  const RemoteRegion remote = pair_->remote("owner");  // the same bytes, by another name
  const Block halves{0, kMiB / 2, kMiB / 2};
  far().fill("owner", 1);
  EXPECT_EQ(finished(pair_->peer.write(region_, remote, std::span(&halves, 1))).to_string(), "ok");
  EXPECT_EQ(far().difference("owner", 1, {{kMiB / 2, 1, 0, kMiB / 2}}), "");
  far().fill("owner", 2);
  EXPECT_EQ(finished(pair_->peer.read(region_, remote, std::span(&halves, 1))).to_string(), "ok");
  EXPECT_EQ(far().difference("owner", 2, {{0, 2, kMiB / 2, kMiB / 2}}), "");
}

/// The memory cannot be exported again, so what only the owner could execute bounces, with the
/// reason.
TEST_F(EngineImported, MemoryOnlyItsOwnerCouldCopyBounces) {
  far().add("private", {.kind = "host"});
  const RemoteRegion remote = pair_->remote("private");
  const Block block{0, 0, kMiB};
  far().fill("owner", 1);
  far().fill("private", 2);
  const Status status = finished(pair_->peer.write(region_, remote, std::span(&block, 1)));
  EXPECT_EQ(status.to_string(), "ok");
  EXPECT_EQ(far().difference("private", 2, {{0, 1, 0, kMiB}}), "");
  const auto why = take(pair_->peer.explain(Op::write, region_, remote, 1, kMiB));
  if (why.executor == "peer") return;  // a driver that exports what it imported
  EXPECT_TRUE(why.path.starts_with("bounce+")) << why.path;
  ASSERT_FALSE(why.refused.empty());
  EXPECT_NE(why.refused.back().reason.find("CUDA cannot export it"), std::string::npos)
      << why.refused.back().reason;
}

TEST_F(EngineImported, MemoryIsReachedByThePeerThatOwnsIt) {
  far().connect(pair_->engine.address());
  for (const std::string from : {"device0", "shared"}) {  // which this side can map, so it copies
    SCOPED_TRACE(from);
    far().add(from, {.kind = from});
    far().fill("owner", 1);
    far().fill(from, 2);
    far().start(from, "imported", 2);
    EXPECT_EQ(far().ends(), (std::vector<std::string>{"ok", "ok"}));
    EXPECT_EQ(far().difference("owner", 1, {{0, 2, 0, kMiB}}), "");
  }
}

/// An Engine of two in this process, with memory of each kind that there is.
struct Side {
  explicit Side(const std::string& name) : engine(take(Engine::open(engine_options(name)))) {
    must(engine.listen());
    for (const Kind& kind : kKinds) {
      if (!kinds_here({kind}).ok()) continue;
      held[kind.name] = Held::make(engine, {.kind = kind.name});
      must(engine.publish(kind.name, held[kind.name].region));
    }
  }
  std::map<std::string, Held> held;  // outlives the Engine
  Engine engine;
};

/// Moves all pairs of kinds both ways, and verifies every byte of both sides.
void move_all(const Peer& peer, Side& here, Side& there, const std::vector<Block>& blocks) {
  std::uint64_t seed = 0;
  for (auto& [near_name, near] : here.held) {
    for (auto& [far_name, far] : there.held) {
      SCOPED_TRACE(near_name + " and " + far_name);
      const RemoteRegion remote = take(peer.lookup(far_name));
      const auto why = take(peer.explain(Op::write, near.region, remote, blocks.size(), kMiB));
      EXPECT_TRUE(why.path.starts_with("same_process+")) << why.path;
      for (const Op op : {Op::write, Op::read}) {
        const std::uint64_t ours = ++seed, theirs = ++seed;
        near.fill(ours);
        far.fill(theirs);
        EXPECT_EQ(finished(op == Op::write ? peer.write(near.region, remote, blocks)
                                           : peer.read(near.region, remote, blocks))
                      .to_string(),
                  "ok");
        std::vector<Expected> came;
        for (const Block& b : blocks)
          came.push_back(op == Op::write
                             ? Expected{b.remote_offset, ours, b.local_offset, b.bytes}
                             : Expected{b.local_offset, theirs, b.remote_offset, b.bytes});
        EXPECT_EQ(near.difference(ours, op == Op::read ? came : std::vector<Expected>()), "");
        EXPECT_EQ(far.difference(theirs, op == Op::write ? came : std::vector<Expected>()), "");
      }
    }
  }
}

TEST(EngineInOneProcess, MovesEveryPairOfKindsFromBothSides) {
  Side one("one"), two("two");
  const Peer to_two = take(one.engine.connect(two.engine.address()));
  const Peer to_one = take(two.engine.accept(10s));
  std::vector<Block> small;
  for (std::uint64_t i = 0; i < 256; ++i) small.push_back({i * 2048 + i % 7, i * 3001 + 5, 1500});
  move_all(to_two, one, two, {{5, 3, kMiB - 5}});
  move_all(to_one, two, one, small);
  // No peer is left to acknowledge: all handles of the regions are gone.
  for (auto& [name, held] : one.held)
    EXPECT_EQ(one.engine.deregister(held.region).to_string(), "ok");
}

/// device0 to device0 of another process; EnginePairs looks at the bytes of each kind.
TEST_F(EngineMemory, OfOneGpuInTwoProcessesMovesAndSaysThatKernelsTakeTurns) {
  Held here;  // outlives the Engine
  Pair pair;
  pair.far.add("there", {.kind = "device0"});
  here = Held::make(pair.engine, {.kind = "device0"});
  const RemoteRegion there = pair.remote("there");
  std::vector<Block> small;
  std::vector<Expected> due;
  for (std::uint64_t i = 0; i < 1024; ++i) {
    small.push_back({i * 1024, i * 1024 + 3, 1000});
    due.push_back({i * 1024 + 3, 1, i * 1024, 1000});
  }
  here.fill(1);
  pair.far.fill("there", 2);
  const auto why = take(pair.peer.explain(Op::write, here.region, there, small.size(), kMiB));
  EXPECT_NE(why.reason.find("time-sliced"), std::string::npos) << why.reason;
  EXPECT_EQ(finished(pair.peer.write(here.region, there, small)).to_string(), "ok");
  EXPECT_EQ(pair.far.difference("there", 2, due), "");
}

}  // namespace engine_memory_test
}  // namespace linkspan::test
