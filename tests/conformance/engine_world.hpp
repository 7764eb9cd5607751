// tests/conformance/engine_world.hpp - one far process for all tests of a suite, with a region of
// every kind of memory that there is, here and there.
//
// Threads: externally synchronised.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "tests/conformance/engine_fixture.hpp"

namespace linkspan::test {

/// Starts what moves `blocks` between `here` and the far region of that name, and verifies every
/// byte of both sides.
template <class Start>
void expect_moved(FarEngine& far, const std::string& there, Held& here, Op op,
                  std::span<const Block> blocks, std::uint64_t seed, const Start& start) {
  const std::uint64_t ours = seed, theirs = seed + 1;
  here.fill(ours);
  far.fill(there, theirs);
  ASSERT_EQ(finished(start()).to_string(), "ok");
  std::vector<Expected> here_due, there_due;
  for (const Block& b : blocks) {
    if (op == Op::write)
      there_due.push_back({b.remote_offset, ours, b.local_offset, b.bytes});
    else
      here_due.push_back({b.local_offset, theirs, b.remote_offset, b.bytes});
  }
  EXPECT_EQ(here.difference(ours, here_due), "");
  EXPECT_EQ(far.difference(there, theirs, there_due), "");
}

class World {
 public:
  static constexpr std::uint64_t kBytes = 3u << 20;

  World() {
    for (const Kind& kind : kKinds) add(kind);
    for (const Kind& kind : kUnshared) add(kind);
  }
  Pair& pair() { return pair_; }
  Held& here(const Kind& kind) { return here_.at(kind.name); }
  const RemoteRegion& remote(const Kind& kind) const { return remote_.at(kind.name); }

  template <class Start>
  void move(const Kind& near, const Kind& far, Op op, std::span<const Block> blocks,
            const Start& start) {
    expect_moved(pair_.far, far.name, here(near), op, blocks, seeds_ += 2, start);
  }
  /// Does the same for blocks that were submitted as `shape`.
  template <class Shape>
  void move(const Kind& near, const Kind& far, Op op, const std::vector<Block>& blocks,
            const Shape& shape, const TransferOptions& options) {
    move(near, far, op, blocks, [&] {
      return op == Op::write ? pair_.peer.write(here(near).region, remote(far), shape, options)
                             : pair_.peer.read(here(near).region, remote(far), shape, options);
    });
  }
  /// Moves the blocks both ways.
  void move(const Kind& near, const Kind& far, const std::vector<Block>& blocks) {
    for (const Op op : {Op::write, Op::read})
      move(near, far, op, blocks, std::span<const Block>(blocks), {});
  }

 private:
  void add(const Kind& kind) {
    if (!kinds_here({kind}).ok()) return;
    pair_.far.add(kind.name, {.kind = kind.name, .bytes = kBytes});
    here_[kind.name] = Held::make(pair_.engine, {.kind = kind.name, .bytes = kBytes});
    remote_[kind.name] = pair_.remote(kind.name);
  }

  std::map<std::string, Held> here_;  // outlives the Engine
  Pair pair_;
  std::map<std::string, RemoteRegion> remote_;
  std::uint64_t seeds_ = 100;
};

class WithWorld {
 protected:
  static World& world() { return *world_; }
  static void make_world() { world_ = std::make_unique<World>(); }
  static void end_world() { world_.reset(); }

 private:
  inline static std::unique_ptr<World> world_;
};

/// A suite for pairs of kinds, of which the first is here.
class WorldPairs : public ::testing::TestWithParam<std::tuple<Kind, Kind>>, public WithWorld {
 protected:
  static void SetUpTestSuite() { make_world(); }
  static void TearDownTestSuite() { end_world(); }
  void SetUp() override {
    const Status status = kinds_here({near(), far()});
    if (!status.ok()) GTEST_SKIP() << status.to_string();
  }
  static Kind near() { return std::get<0>(GetParam()); }
  static Kind far() { return std::get<1>(GetParam()); }
};

inline std::string name_of_pair(const ::testing::TestParamInfo<std::tuple<Kind, Kind>>& param) {
  return std::string(std::get<0>(param.param).name) + "_to_" + std::get<1>(param.param).name;
}

}  // namespace linkspan::test
