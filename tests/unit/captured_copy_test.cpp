// Tests the kernel of captured posts, its gate and its counts, inside and outside a CUDA graph.
#include "copy/captured_copy.hpp"

#include <cstring>
#include <thread>

#include "bench/bare/graph_entries.hpp"
#include "cuda/graph.hpp"
#include "tests/support/driver_entries.hpp"
#include "tests/support/fake_cuda/controls.hpp"
#include "tests/unit/cuda_fixture.hpp"

namespace linkspan::copy {
namespace captured_copy_test {

using namespace std::chrono_literals;
using cuda::CUDA_SUCCESS;

class CapturedCopyOnDevice : public cuda::OnDevice {
 protected:
  static constexpr std::size_t kBytes = 1u << 20;

  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (device->copy_captured() == nullptr) GTEST_SKIP() << "needs a GPU and a build with kernels";
    gpus = std::move(topology);
    graphs = cuda::GraphEntries::find(cuda::driver_entry);
    ASSERT_TRUE(graphs);
    make(stream, cuda::Stream::create(*scope));
    make(from, cuda::DeviceBuffer::create(*scope, kBytes));
    make(to, cuda::DeviceBuffer::create(*scope, kBytes));
    make(host, cuda::PinnedBuffer::create(*scope, kBytes));
    ASSERT_TRUE(stream && from && to && host);
    upload(*from, 1);
    upload(*to, 2);
  }
  void TearDown() override {
    copy.reset();
    stream.reset();
    from.reset();
    to.reset();
    host.reset();
    scope.reset();
    gpus.reset();
  }

  template <class T>
  static void make(std::optional<T>& member, Result<T> made) {
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    member.emplace(*std::move(made));
  }
  void upload(const cuda::DeviceBuffer& buffer, unsigned seed) {
    for (std::size_t i = 0; i < kBytes; ++i) host->data()[i] = cuda::pattern(i, seed);
    ASSERT_TRUE(stream->copy(*scope, buffer.address(), host->device_address(), kBytes).ok());
    finish(*stream);
  }
  /// Makes the copy of pieces whose addresses are offsets in `to` and `from`.
  void prepare(std::vector<Piece> offsets, unsigned ctas = 8) {
    pieces = std::move(offsets);
    std::vector<Piece> placed;
    for (const Piece& p : pieces)
      placed.push_back({to->address() + p.to, from->address() + p.from, p.bytes});
    auto made = CapturedCopy::create(gpus, *device, placed, ctas);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    copy = *std::move(made);
  }
  /// Captures the copy. Returns the executable; its graph is destroyed.
  cuda::CUgraphExec capture() {
    cuda::CUgraph graph = nullptr;
    EXPECT_EQ(graphs.cuStreamBeginCapture(stream->get(), cuda::CU_STREAM_CAPTURE_MODE_GLOBAL),
              CUDA_SUCCESS);
    const auto captured = cuda::captured_graph(*scope, stream->get());
    EXPECT_TRUE(captured.ok() && *captured != nullptr);
    const Status recorded = copy->record(*scope, stream->get(), *captured);
    EXPECT_TRUE(recorded.ok()) << recorded.to_string();
    EXPECT_EQ(graphs.cuStreamEndCapture(stream->get(), &graph), CUDA_SUCCESS);
    cuda::CUgraphExec executable = nullptr;
    EXPECT_EQ(graphs.cuGraphInstantiateWithFlags(&executable, graph, 0), CUDA_SUCCESS);
    EXPECT_EQ(graphs.cuGraphDestroy(graph), CUDA_SUCCESS);
    return executable;
  }
  void launch(cuda::CUgraphExec executable) {
    EXPECT_EQ(graphs.cuGraphLaunch(executable, stream->get()), CUDA_SUCCESS);
  }
  void destroy(cuda::CUgraphExec executable) {
    EXPECT_EQ(graphs.cuGraphExecDestroy(executable), CUDA_SUCCESS);
    EXPECT_TRUE(comes([&] { return copy->graph_has_ended(); }));
  }
  template <class Test>
  static bool comes(Test test, std::chrono::milliseconds limit = 5s) {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (!test()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::yield();
    }
    return true;
  }
  /// Checks that `to` has pattern 2, except in the pieces if they were `copied`.
  void expect(bool copied) {
    ASSERT_TRUE(stream->copy(*scope, host->device_address(), to->address(), kBytes).ok());
    finish(*stream);
    std::vector<std::byte> expected(kBytes);
    for (std::size_t i = 0; i < kBytes; ++i) expected[i] = cuda::pattern(i, 2);
    for (const Piece& p : pieces)
      for (std::uint64_t i = 0; copied && i < p.bytes; ++i)
        expected[p.to + i] = cuda::pattern(p.from + i, 1);
    EXPECT_EQ(std::memcmp(host->data(), expected.data(), kBytes), 0);
  }

  std::shared_ptr<cuda::Topology> gpus;
  cuda::GraphEntries graphs;
  std::optional<cuda::Stream> stream;
  std::optional<cuda::DeviceBuffer> from, to;
  std::optional<cuda::PinnedBuffer> host;
  std::vector<Piece> pieces;
  std::shared_ptr<CapturedCopy> copy;
};

const std::vector<Piece> kOdd = {{1, 3, 1}, {16, 64, 4097}, {100'001, 9, 65'537}, {400'000, 0, 8}};

TEST_F(CapturedCopyOnDevice, CopiesAtEachLaunchAndCounts) {
  for (const unsigned ctas : {1u, 3u, 64u}) {
    prepare(kOdd, ctas);
    const cuda::CUgraphExec graph = capture();
    upload(*to, 2);
    EXPECT_EQ(copy->completed(), 0u) << "captured, not launched";
    for (std::uint64_t i = 1; i <= 5; ++i) {
      launch(graph);
      ASSERT_TRUE(comes([&] { return copy->completed() == i; }));
    }
    expect(true);
    EXPECT_EQ(copy->refused(), 0u);
    destroy(graph);
  }
}

TEST_F(CapturedCopyOnDevice, CopiesNothing_OnceItsGateIsClosed) {
  prepare(kOdd);
  const cuda::CUgraphExec graph = capture();
  copy->close_gate();
  EXPECT_TRUE(comes([&] { return copy->is_quiet(); }));
  launch(graph);
  launch(graph);
  EXPECT_TRUE(comes([&] { return copy->refused() == 2; }));
  EXPECT_EQ(copy->completed(), 0u);
  expect(false);
  destroy(graph);
}

TEST_F(CapturedCopyOnDevice, AClosedGateRefusesALaunchWithoutPieces) {
  prepare({});
  const cuda::CUgraphExec graph = capture();
  launch(graph);
  EXPECT_TRUE(comes([&] { return copy->completed() == 1; }));
  copy->close_gate();
  EXPECT_TRUE(comes([&] { return copy->is_quiet(); }));
  launch(graph);
  EXPECT_TRUE(comes([&] { return copy->refused() == 1; }));
  destroy(graph);
}

TEST_F(CapturedCopyOnDevice, IsQuietOnlyAfterTheLaunchesThatFoundItOpen) {
  // 2 GB through one CTA: tens of milliseconds, and some microseconds once the gate is closed.
  prepare(std::vector<Piece>(2048, Piece{0, 0, kBytes}), 1);
  const cuda::CUgraphExec graph = capture();
  for (int i = 0; i < 4; ++i) launch(graph);
  copy->close_gate();
  EXPECT_TRUE(comes([&] { return copy->is_quiet(); }));
  const std::uint64_t completed = copy->completed();
  // Nothing of what runs later copies, which could not be told from memory that is used again.
  upload(*from, 3);
  EXPECT_TRUE(comes([&] { return copy->completed() + copy->refused() == 4; }));
  EXPECT_EQ(copy->completed(), completed);
  destroy(graph);
}

TEST_F(CapturedCopyOnDevice, IsNotQuiet_BeforeTheGpuHasAnswered) {
  const test::FakeCuda fake = test::FakeCuda::find();
  if (!fake) GTEST_SKIP() << "needs the simulated driver";
  prepare(kOdd);
  const cuda::CUgraphExec graph = capture();
  launch(graph);
  ASSERT_TRUE(comes([&] { return copy->completed() == 1; }));
  test::FakeCudaHold held(fake, 0);
  launch(graph);
  copy->close_gate();
  EXPECT_FALSE(comes([&] { return copy->is_quiet(); }, 30ms));
  held.release();
  EXPECT_TRUE(comes([&] { return copy->is_quiet(); }));
  EXPECT_TRUE(comes([&] { return copy->completed() + copy->refused() == 2; }));
  destroy(graph);
}

TEST_F(CapturedCopyOnDevice, IsQuiet_WhenItsContextIsLost) {
  const test::FakeCuda fake = test::FakeCuda::find();
  if (!fake) GTEST_SKIP() << "needs the simulated driver";
  prepare(kOdd);
  const cuda::CUgraphExec graph = capture();
  launch(graph);
  ASSERT_TRUE(comes([&] { return copy->completed() == 1; }));
  fake.lose(0);
  copy->close_gate();
  EXPECT_TRUE(comes([&] { return copy->is_quiet(); })) << "no kernel is left there";
  fake.reset();
  destroy(graph);
}

TEST_F(CapturedCopyOnDevice, OutlivesItsOwner_WhileItsGraphExists) {
  prepare(kOdd);
  const cuda::CUgraphExec graph = capture();
  copy->close_gate();
  EXPECT_TRUE(comes([&] { return copy->is_quiet(); }));
  const std::weak_ptr<CapturedCopy> watched = copy;
  CapturedCopy* const there = copy.get();
  CapturedCopy::keep_until_graph_ends(std::move(copy));
  CapturedCopy::keep_until_graph_ends(nullptr);
  launch(graph);
  EXPECT_TRUE(comes([&] { return there->refused() == 1; }));
  EXPECT_EQ(graphs.cuGraphExecDestroy(graph), CUDA_SUCCESS);
  EXPECT_TRUE(comes([&] {
    CapturedCopy::keep_until_graph_ends(nullptr);
    return watched.expired();
  }));
}

TEST_F(CapturedCopyOnDevice, RefusesMorePiecesThanAListHas) {
  const std::vector<Piece> many(3, Piece{0, 0, std::uint64_t{1} << 38});
  const auto made = CapturedCopy::create(gpus, *device, many, 8);
  EXPECT_EQ(made.status().code(), Code::unsupported);
  EXPECT_NE(made.status().what().find("prepare and capture several"), std::string::npos);
}

}  // namespace captured_copy_test
}  // namespace linkspan::copy
