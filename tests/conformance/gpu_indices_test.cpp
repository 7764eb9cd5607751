// Tests page lists that lie on a GPU: between real processes, in the order of the stream that
// writes them, with unchecked indices, and refusals.
#include <algorithm>
#include <numeric>
#include <random>

#include "tests/conformance/engine_world.hpp"
#include "tests/support/held_stream.hpp"

namespace linkspan::test {
namespace gpu_indices_test {

using Indices = std::vector<std::uint32_t>;
constexpr std::uint64_t kLocalBase = 3, kRemoteBase = 99'999;  // so fewer pages fit there

/// Returns `count` different pages in random order.
Indices shuffled(std::uint64_t page_bytes, std::size_t count, unsigned seed) {
  Indices all((World::kBytes - kRemoteBase) / page_bytes);
  std::iota(all.begin(), all.end(), 0);
  std::shuffle(all.begin(), all.end(), std::mt19937(seed));
  all.resize(count);
  return all;
}

/// Two lists in memory of the first GPU or pinned, which a stream writes.
class Lists {
 public:
  Lists(std::size_t count, bool pinned) : count_(count) {
    const auto scope = take(gpu().enter());
    if (pinned)
      pinned_.emplace(take(cuda::PinnedBuffer::create(scope, bytes())));
    else
      device_.emplace(take(cuda::DeviceBuffer::create(scope, bytes())));
  }
  /// Makes the arguments of write() before a stream is held, because making a stream may wait for
  /// it. They lie on the GPU, because a copy between host memories returns only when it is done.
  cuda::DeviceBuffer stage(const Indices& ours, const Indices& theirs) const {
    const auto scope = take(gpu().enter());
    const auto host = take(cuda::PinnedBuffer::create(scope, bytes()));
    auto* const to = reinterpret_cast<std::uint32_t*>(host.data());
    std::ranges::copy(theirs, std::ranges::copy(ours, to).out);
    auto staged = take(cuda::DeviceBuffer::create(scope, bytes()));
    const auto stream = take(cuda::Stream::create(scope));
    EXPECT_EQ(stream.copy(scope, staged.address(), host.device_address(), bytes()).to_string(),
              "ok");
    EXPECT_EQ(stream.synchronize(scope).to_string(), "ok");
    return staged;
  }
  /// Writes the lists in the order of `stream`.
  void write(HeldStream& stream, const cuda::DeviceBuffer& staged) const {
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    stream.copy(begin(), reinterpret_cast<const void*>(staged.address()), bytes());
  }
  Pages pages(std::uint64_t page_bytes) const {
    return {.page_bytes = page_bytes,
            .local_base = kLocalBase,
            .remote_base = kRemoteBase,
            .local_index = {begin(), count_},
            .remote_index = {begin() + count_, count_},
            .indices_on_gpu = true};
  }
  static const cuda::Device& gpu() {
    return *take(topology()->activate(topology()->devices()[0].uuid));
  }

 private:
  std::size_t bytes() const { return 2 * count_ * sizeof(std::uint32_t); }
  const std::uint32_t* begin() const {  // NOLINTNEXTLINE(performance-no-int-to-ptr)
    return reinterpret_cast<const std::uint32_t*>(device_ ? device_->address()
                                                          : pinned_->device_address());
  }

  const std::size_t count_;
  std::optional<cuda::PinnedBuffer> pinned_;  // either
  std::optional<cuda::DeviceBuffer> device_;
};

std::vector<Block> blocks_of(std::uint64_t page_bytes, const Indices& ours, const Indices& theirs) {
  std::vector<Block> all;
  for (std::size_t i = 0; i < ours.size(); ++i)
    all.push_back(
        {kLocalBase + ours[i] * page_bytes, kRemoteBase + theirs[i] * page_bytes, page_bytes});
  return all;
}

class EngineGpuIndices : public WorldPairs {
 protected:
  void SetUp() override {
    const Status status = kinds_here({kKinds[0], near(), far()});
    if (!status.ok()) GTEST_SKIP() << status.to_string();
    if (!Lists::gpu().kernels().ok()) GTEST_SKIP() << "needs a build with kernels";
    stream_.emplace();
  }
  void TearDown() override { stream_.reset(); }
  /// Returns lists on the GPU that copies, which is the far side's if the near side is pinned
  /// memory.
  static Lists lists_of(std::size_t count) { return {count, near().kind != MemoryKind::device}; }
  Lists written(const Indices& ours, const Indices& theirs) {
    Lists lists = lists_of(ours.size());
    lists.write(*stream_, lists.stage(ours, theirs));
    stream_->synchronize();
    return lists;
  }
  Result<Transfer> start(Op op, const Pages& pages, const TransferOptions& options = {}) {
    const Peer& peer = world().pair().peer;
    const Region& here = world().here(near()).region;
    const RemoteRegion& there = world().remote(far());
    return op == Op::write ? peer.write(here, there, pages, options)
                           : peer.read(here, there, pages, options);
  }
  std::optional<HeldStream> stream_;
};

TEST_P(EngineGpuIndices, MovesPagesOfEverySize) {
  for (const auto& [page_bytes, count] : {std::pair<std::uint64_t, std::size_t>{1, 100},
                                          {257, 150},
                                          {4096, 70},
                                          {1u << 20, 2},  // a copy engine would be faster
                                          {13, 40'000}})  // more than a batch holds
    for (const Op op : {Op::write, Op::read}) {
      SCOPED_TRACE(page_bytes);
      const Indices ours = shuffled(page_bytes, count, 1), theirs = shuffled(page_bytes, count, 2);
      const Lists lists = written(ours, theirs);
      world().move(near(), far(), op, blocks_of(page_bytes, ours, theirs),
                   [&, bytes = page_bytes] { return start(op, lists.pages(bytes)); });
    }
}

TEST_P(EngineGpuIndices, APageThatLeavesItsRegionIsNotCopied) {
  constexpr std::uint64_t kPage = 61;
  constexpr std::size_t kCount = 40'000, kWrong = 33'000;  // in the second batch
  const auto pages_behind = [](std::uint64_t base) {
    return static_cast<std::uint32_t>((World::kBytes - base) / kPage);
  };
  for (const Op op : {Op::write, Op::read})
    for (const bool ours_is_wrong : {true, false})
      for (const std::uint32_t wrong :
           {pages_behind(ours_is_wrong ? kLocalBase : kRemoteBase), ~0u}) {
        Indices ours = shuffled(kPage, kCount, 1), theirs = shuffled(kPage, kCount, 2);
        std::vector<Block> due = blocks_of(kPage, ours, theirs);
        due.erase(due.begin() + kWrong);
        (ours_is_wrong ? ours : theirs)[kWrong] = wrong;
        const Lists lists = written(ours, theirs);
        world().move(near(), far(), op, due, [&]() -> Result<Transfer> {
          const Status end = finished(start(op, lists.pages(kPage)));
          EXPECT_EQ(end.code(), Code::invalid_argument) << end.to_string();
          const bool target = ours_is_wrong == (op == Op::read);
          const std::string text = "page 33000 leaves its region: " + std::to_string(wrong) +
                                   " in the list of the " + (target ? "target" : "source");
          EXPECT_NE(end.what().find(text), std::string::npos) << end.to_string();
          return start(op, Pages{});  // what move() waits for
        });
      }
}

TEST_P(EngineGpuIndices, AreReadInTheOrderOfTheStreamThatWritesThem) {
  constexpr std::uint64_t kPage = 100;
  constexpr std::size_t kCount = 300;
  const Indices ours = shuffled(kPage, kCount, 1), theirs = shuffled(kPage, kCount, 2);
  const Indices wrong(kCount, ~0u);
  const Lists lists = written(wrong, wrong);
  const cuda::DeviceBuffer right = lists.stage(ours, theirs), spoilt = lists.stage(wrong, wrong);
  world().move(near(), far(), Op::write, blocks_of(kPage, ours, theirs), [&] {
    stream_->hold();
    lists.write(*stream_, right);
    auto moved = start(Op::write, lists.pages(kPage),
                       {.after = stream_->order(), .release = stream_->order()});
    lists.write(*stream_, spoilt);  // written after the transfer has read them
    stream_->go_on();
    stream_->synchronize();
    return moved;
  });
}

TEST_P(EngineGpuIndices, OfAHeldStreamAreCanceled) {
  const Lists lists = written({0, 1, 2}, {0, 1, 2});
  world().move(near(), far(), Op::write, blocks_of(64, {0, 1, 2}, {0, 1, 2}), [&] {
    stream_->hold();
    std::vector<Transfer> begun;
    for (int i = 0; i < 3; ++i)
      begun.push_back(
          take(start(Op::write, lists.pages(64), {.deadline = 20s, .after = stream_->order()})));
    EXPECT_EQ(begun[1].cancel().code(), Code::pending);
    stream_->go_on();
    const Status end = begun[1].wait(10s);
    EXPECT_TRUE(end.ok() || end.code() == Code::canceled) << end.to_string();
    EXPECT_EQ(begun[0].wait(10s).to_string(), "ok");
    return Result<Transfer>(begun[2]);
  });
}

TEST_P(EngineGpuIndices, AWrongOneInTheFirstBatchEndsTheTransfer) {
  constexpr std::uint64_t kPage = 13;
  Indices ours = shuffled(kPage, 40'000, 1), theirs = shuffled(kPage, 40'000, 2);
  theirs[5] = ~0u;
  const Lists lists = written(ours, theirs);
  const Status end = finished(start(Op::write, lists.pages(kPage), {.low_latency = true}));
  EXPECT_EQ(end.code(), Code::invalid_argument) << end.to_string();
  EXPECT_NE(end.what().find("page 5 leaves its region"), std::string::npos) << end.to_string();
}

TEST_P(EngineGpuIndices, ManyAtOnceWaitTheirTurn) {
  constexpr std::uint64_t kPage = 64;
  constexpr std::size_t kTransfers = 400, kEach = 50;  // more than are in flight at a time
  const Indices ours = shuffled(kPage, kTransfers * kEach, 1);
  const Indices theirs = shuffled(kPage, kTransfers * kEach, 2);
  const Lists lists = written(ours, theirs);
  world().move(near(), far(), Op::write, blocks_of(kPage, ours, theirs), [&]() -> Result<Transfer> {
    std::vector<Transfer> begun;
    for (std::size_t i = 0; i < kTransfers; ++i) {
      Pages part = lists.pages(kPage);
      part.local_index = part.local_index.subspan(i * kEach, kEach);
      part.remote_index = part.remote_index.subspan(i * kEach, kEach);
      begun.push_back(take(start(Op::write, part)));
    }
    for (const Transfer& each : begun) EXPECT_EQ(each.wait(30s).to_string(), "ok");
    return start(Op::write, Pages{});
  });
}

TEST_P(EngineGpuIndices, WhatIsNoListIsRefused) {
  const Lists lists = written({0, 1, 2}, {0, 1, 2});
  const Pages good = lists.pages(64);
  const Indices host = {0, 1, 2};
  Pages shorter = good, odd = good, on_host = good, large = good;
  shorter.local_index = good.local_index.first(2);
  odd.local_index = {reinterpret_cast<const std::uint32_t*>(
                         reinterpret_cast<const std::byte*>(good.local_index.data()) + 1),
                     3};
  on_host.remote_index = host;
  large.page_bytes = World::kBytes;
  for (const Pages& bad : {shorter, odd, on_host, large}) {
    const Status status = start(Op::write, bad).status();
    EXPECT_EQ(status.code(), Code::invalid_argument) << status.to_string();
  }
  const auto prepared = world().pair().peer.prepare(Op::write, world().here(near()).region,
                                                    world().remote(far()), good);
  EXPECT_EQ(prepared.status().code(), Code::unsupported) << prepared.status().to_string();
  const auto no_kernel = start(Op::write, good, {.copy_ctas = 0u});
  EXPECT_EQ(no_kernel.status().code(), Code::unreachable) << no_kernel.status().to_string();
  EXPECT_NE(no_kernel.status().what().find("copy_ctas is 0"), std::string::npos);
  Lists elsewhere = lists_of(3);
  Pages mixed = good;
  mixed.remote_index = elsewhere.pages(64).remote_index;
  mixed.page_bytes = 0;  // nothing is read, and nothing moves
  EXPECT_EQ(finished(start(Op::write, mixed)).to_string(), "ok");
  Pages none;
  none.page_bytes = 64;
  none.indices_on_gpu = true;
  EXPECT_EQ(finished(start(Op::write, none)).to_string(), "ok");
}

TEST_P(EngineGpuIndices, TakeTheKernelWhereACopyEngineWouldBeFaster) {
  const Lists lists = written({0, 1}, {1, 0});
  const Status status = start(Op::write, lists.pages(1 << 20), {.require = "kernel"}).status();
  EXPECT_EQ(status.code(), Code::unsupported);
  EXPECT_NE(status.what().find("+sm_kernel"), std::string::npos) << status.to_string();
}

INSTANTIATE_TEST_SUITE_P(Every, EngineGpuIndices,
                         ::testing::Values(std::tuple{kKinds[0], kKinds[0]},
                                           std::tuple{kKinds[0], kKinds[1]},
                                           std::tuple{kKinds[0], kKinds[4]},
                                           std::tuple{kKinds[2], kKinds[1]}),
                         name_of_pair);

/// Covers pairs where no kernel of this process copies.
class EngineGpuIndicesElsewhere : public EngineGpuIndices {};

TEST_P(EngineGpuIndicesElsewhere, AreRefusedWithTheRemedy) {
  const Lists lists = written({0, 1, 2}, {0, 1, 2});
  for (const StreamOrder& after : {StreamOrder{}, stream_->order()}) {
    const Status status = start(Op::write, lists.pages(64), {.after = after}).status();
    EXPECT_EQ(status.code(), Code::unreachable) << status.to_string();
    EXPECT_NE(status.what().find("copy the indices to host memory"), std::string::npos)
        << status.to_string();
  }
}

INSTANTIATE_TEST_SUITE_P(Every, EngineGpuIndicesElsewhere,
                         ::testing::Values(std::tuple{kKinds[3], kKinds[4]},
                                           std::tuple{kKinds[0], kKinds[2]},
                                           std::tuple{kKinds[3], kKinds[0]},
                                           std::tuple{kUnshared[0], kUnshared[1]}),
                         name_of_pair);

}  // namespace gpu_indices_test
}  // namespace linkspan::test
