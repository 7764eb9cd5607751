// Tests GPU memory that cudaMalloc did not allocate: rows of chunks and allocations of pools,
// mapped by peers where possible, else copied by their owner, and unmapped under their address.
#include <map>
#include <string>

#include "tests/conformance/engine_fixture.hpp"

namespace linkspan::test {
namespace engine_made_test {

constexpr std::uint64_t kMiB = 1u << 20;
constexpr std::uint64_t kBytes = 5 * kMiB;  // crosses two borders of chunks, the first at 8249

struct Way {
  const char *near, *far;
  const char* path;  // its begin
  const char* executor;
};
void PrintTo(const Way& way, std::ostream* out) { *out << way.near << "_to_" << way.far; }

constexpr Way kWays[] = {
    {"device0", "chunks", "cuda_vmm+", "here"},
    {"device1", "chunks", "cuda_vmm+", "here"},
    {"pinned", "chunks", "cuda_vmm+copy_engine", "here"},
    {"host", "chunks", "cuda_vmm+pageable", "here"},
    {"shared", "chunks", "cuda_vmm+", "here"},
    {"chunks", "chunks", "cuda_vmm+", "here"},
    {"chunks", "device0", "cuda_ipc+", "here"},
    {"chunks", "shared", "memfd+", "here"},
    {"chunks", "host", "cuda_vmm+pageable", "peer"},
    {"device0", "pool", "cuda_pool+", "here"},
    {"host", "pool", "cuda_pool+pageable", "here"},
    {"pool", "chunks", "cuda_vmm+", "here"},
    {"chunks", "pool", "cuda_pool+", "here"},
    {"pool", "pinned", "cuda_pool+", "peer"},
    {"unshared_chunks", "chunks", "cuda_vmm+", "here"},
    {"unshared_pool", "shared", "memfd+", "here"},
    {"device0", "unshared_chunks", "cuda_ipc+", "peer"},
    {"chunks", "unshared_chunks", "cuda_vmm+", "peer"},
    {"shared", "unshared_pool", "memfd+", "peer"},
};

struct World {
  RemoteRegion remote(const std::string& kind) {
    if (!remotes.contains(kind)) {
      pair.far.add(kind, {.kind = kind, .bytes = kBytes});
      remotes[kind] = pair.remote(kind);
    }
    return remotes[kind];
  }
  Held& here(const std::string& kind) {
    if (!held.contains(kind)) held[kind] = Held::make(pair.engine, {.kind = kind, .bytes = kBytes});
    return held[kind];
  }
  std::map<std::string, Held> held;  // outlives the Engine
  Pair pair;
  std::map<std::string, RemoteRegion> remotes;
};

class EngineMade : public ::testing::TestWithParam<Way> {
 protected:
  static void SetUpTestSuite() {
    if (need_gpus(2).ok()) world_ = std::make_unique<World>();
  }
  static void TearDownTestSuite() { world_.reset(); }
  void SetUp() override {
    if (const Status status = need_gpus(2); !status.ok()) GTEST_SKIP() << status.to_string();
  }
  inline static std::unique_ptr<World> world_;
};

TEST_P(EngineMade, MovesAcrossBordersBothWays) {
  const auto& [near, far, path, executor] = GetParam();
  const RemoteRegion remote = world_->remote(far);
  Held& here = world_->here(near);
  FarEngine& there = world_->pair.far;
  std::vector<Block> small;
  for (std::uint64_t i = 0; i < 400; ++i)
    small.push_back({i * 11000 + i % 7, i * 11003 + 5, 9000 + i % 13});
  for (const std::vector<Block>& blocks : {std::vector<Block>{{5, 3, kBytes - 1001}}, small}) {
    for (const Op op : {Op::write, Op::read}) {
      here.fill(1);
      there.fill(far, 2);
      EXPECT_EQ(finished(op == Op::write ? world_->pair.peer.write(here.region, remote, blocks)
                                         : world_->pair.peer.read(here.region, remote, blocks))
                    .to_string(),
                "ok");
      std::vector<Expected> here_due, there_due;
      for (const Block& b : blocks) {
        if (op == Op::write)
          there_due.push_back({b.remote_offset, 1, b.local_offset, b.bytes});
        else
          here_due.push_back({b.local_offset, 2, b.remote_offset, b.bytes});
      }
      EXPECT_EQ(here.difference(1, here_due), "");
      EXPECT_EQ(there.difference(far, 2, there_due), "");
    }
  }
  const auto why = take(world_->pair.peer.explain(Op::write, here.region, remote, 1, kBytes));
  EXPECT_TRUE(why.path.starts_with(path)) << why.path;
  EXPECT_EQ(why.executor, executor);
}

INSTANTIATE_TEST_SUITE_P(Every, EngineMade, ::testing::ValuesIn(kWays), [](const auto& param) {
  return std::string(param.param.near) + "_to_" + param.param.far;
});

class EngineMadeGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Status status = need_gpus(2); !status.ok()) GTEST_SKIP() << status.to_string();
  }
  /// Returns all refused paths in order.
  static std::string refusals(const Explanation& why) {
    std::string all;
    for (const PathRefusal& each : why.refused) all += each.path + ": " + each.reason + "\n";
    return all;
  }
};

TEST_F(EngineMadeGpu, WhatCannotBeMappedSaysSoWithTheRemedy) {
  Held here;
  Pair pair;
  here = Held::make(pair.engine, {.kind = "device0"});
  for (const auto& [kind, remedy] :
       {std::pair{"unshared_chunks", "TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC=1"},
        {"unshared_pool", "cudaMemPoolCreate"}}) {
    pair.far.add(kind, {.kind = kind});
    const auto why = take(pair.peer.explain(Op::write, here.region, pair.remote(kind), 1, kMiB));
    EXPECT_NE(refusals(why).find("CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR"), std::string::npos)
        << refusals(why);
    EXPECT_NE(refusals(why).find(remedy), std::string::npos) << refusals(why);
  }
}

TEST_F(EngineMadeGpu, MapsChunksOfAGpuThatIsHiddenFromTheInitiator) {
  Held target;
  Pair pair({"CUDA_VISIBLE_DEVICES=0"});
  must(pair.engine.listen());
  target = Held::make(pair.engine, {.kind = "chunks"});  // of the second GPU
  must(pair.engine.publish("target", target.region));
  target.fill(1);
  pair.far.add("source", {.kind = "device0"});
  pair.far.fill("source", 2);
  pair.far.connect(pair.engine.address());
  pair.far.start("source", "target", 2);  // mapped, or copied by the owner: the driver decides
  EXPECT_EQ(pair.far.ends(), (std::vector<std::string>{"ok", "ok"}));
  EXPECT_EQ(target.difference(1, {{0, 2, 0, kMiB}}), "");
}

TEST_F(EngineMadeGpu, RemappedWithoutAWordItIsNotLent) {
  Held target;
  Pair pair;
  must(pair.engine.listen());
  target = Held::make(pair.engine, {.kind = "chunks", .bytes = kBytes});
  must(pair.engine.publish("target", target.region));
  pair.far.add("source", {.kind = "device0", .bytes = kBytes});
  pair.far.connect(pair.engine.address());
  target.buffer->row().remap(1);  // in the middle, so both ends are unchanged
  const auto why = pair.far.explain("source", "target", kBytes);
  EXPECT_NE(why.status().what().find("unreachable"), std::string::npos) << why.status().what();
  EXPECT_NE(why.status().what().find("or Engine::invalidate"), std::string::npos)
      << why.status().what();
}

/// The memory is not registered by the user. The registration kept between messages notices that a
/// chunk was replaced although the first one is the same.
TEST_F(EngineMadeGpu, MessagesFollowAChunkThatIsMappedAnew) {
  Held here;
  Pair pair;
  pair.far.accept();
  here = Held::loose(pair.engine, {.kind = "chunks", .bytes = kBytes});
  pair.far.add_loose("there", {.kind = "host", .bytes = kBytes});  // which reads it by a mapping
  for (const std::uint64_t seed : {1u, 3u, 5u}) {
    if (seed != 1) here.buffer->row().remap(1);
    here.fill(seed);
    pair.far.fill("there", seed + 1);
    const auto number = take(pair.far.post({.name = "there", .bytes = kBytes}));
    EXPECT_EQ(finished(pair.peer.send(1, here.at(0), kBytes)).to_string(), "ok");
    EXPECT_EQ(pair.far.end(number).code, "ok");
    EXPECT_EQ(pair.far.difference("there", seed + 1, {{0, seed, 0, kBytes}}), "");
  }
  // Less of it, and more than is kept.
  const auto number = take(pair.far.post({.name = "there", .bytes = 100}));
  EXPECT_EQ(finished(pair.peer.send(1, here.at(4 * kMiB), 100)).to_string(), "ok");
  EXPECT_EQ(pair.far.end(number).code, "ok");
}

/// The driver does not count imports, so the first free would end them all.
TEST_F(EngineMadeGpu, AnAllocationOfAPoolStaysWithTheOtherEngineThatHasIt) {
  World world;
  const RemoteRegion target = world.remote("pool");
  Held& source = world.here("device0");
  {
    Engine other = take(Engine::open(engine_options("other")));
    const Peer peer = take(other.connect(world.pair.far.address()));
    const RemoteRegion too = take(peer.lookup("pool"));
    EXPECT_EQ(too.bytes(), kBytes);
  }
  source.fill(1);
  world.pair.far.fill("pool", 2);
  const Block all{0, 0, kBytes};
  EXPECT_EQ(finished(world.pair.peer.write(source.region, target, std::span(&all, 1))).to_string(),
            "ok");
  EXPECT_EQ(world.pair.far.difference("pool", 2, {{0, 1, 0, kBytes}}), "");
}

TEST_F(EngineMadeGpu, BetweenEnginesOfOneProcessTheOtherGpuIsLetIn) {
  Held here, there;
  Engine one = take(Engine::open(engine_options("one")));
  Engine two = take(Engine::open(engine_options("two")));
  must(two.listen());
  here = Held::make(one, {.kind = "device0", .bytes = kBytes});
  const Peer peer = take(one.connect(two.address()));
  const Block block{11, 13, kBytes - 13};
  for (const std::string kind : {"chunks", "unshared_chunks", "pool", "unshared_pool"}) {
    SCOPED_TRACE(kind);
    Held target = Held::make(two, {.kind = kind, .bytes = kBytes});
    must(two.publish(kind, target.region));
    {
      const RemoteRegion remote = take(peer.lookup(kind));
      here.fill(1);
      target.fill(2);
      EXPECT_EQ(finished(peer.write(here.region, remote, std::span(&block, 1))).to_string(), "ok");
      EXPECT_EQ(target.difference(2, {{13, 1, 11, kBytes - 13}}), "");
    }
    ASSERT_EQ(two.deregister(target.region).to_string(), "ok");
  }
}

}  // namespace engine_made_test
}  // namespace linkspan::test
