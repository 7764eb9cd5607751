// Tests the bytes of every combination of handles and pointers, GPUs, streams, offsets and sizes,
// and those around the target.
#include <dlfcn.h>

#include <cstdlib>
#include <future>

#include "bench/bare/graph_entries.hpp"
#include "tests/support/driver_entries.hpp"
#include "tests/support/held_stream.hpp"
#include "vcache/native/tests/fixture.hpp"

namespace linkspan::test {
namespace copy_test {

constexpr std::uint64_t kMiB = 1u << 20;

TEST(NvlinkLibrary, IsTheSharedOneBesideThisProgram) {
  Dl_info loaded{};
  ASSERT_NE(::dladdr(reinterpret_cast<void*>(&perform_direct_transfer), &loaded), 0);
  EXPECT_NE(std::string_view(loaded.dli_fname).find("/libnvlink_transfer.so"),
            std::string_view::npos)
      << loaded.dli_fname;
}

struct Way {
  bool from_lender, to_lender;
  int from_gpu, to_gpu;
};

class NvlinkCopies : public NvlinkTransfer,
                     public ::testing::WithParamInterface<std::tuple<Way, bool>> {
 protected:
  static Lender* owner(bool lent) { return lent ? &lender() : nullptr; }
  void* chosen_stream() {
    const auto& [way, created] = GetParam();
    return created ? stream(way.from_gpu) : nullptr;
  }
};

TEST_P(NvlinkCopies, ExactlyTheseBytesAndNoOthers) {
  const Way& way = std::get<0>(GetParam());
  const GpuMemory from(owner(way.from_lender), way.from_gpu, 1);
  const GpuMemory to(owner(way.to_lender), way.to_gpu, 2);
  void* const queue = chosen_stream();
  constexpr std::uint64_t kLast = GpuMemory::kEnd - 1;
  constexpr struct {
    std::uint64_t from, to, bytes;
  } kPieces[] = {{0, 0, 0},
                 {0, 0, 1},
                 {1, 3, 4095},
                 {4097, 8192, kMiB + 3},
                 {kMiB + 1, 2 * kMiB + 4096, kMiB},
                 {kLast, 17, 1},
                 {23, kLast, 1},
                 {kLast, kLast, 0}};
  std::vector<Expected> expected;
  for (const auto& piece : kPieces) {
    EXPECT_EQ(transfer({from.at(piece.from), to.at(piece.to), piece.bytes, queue}), 0)
        << piece.bytes << " bytes: " << nvlink_transfer_last_error();
    expected.push_back({piece.to, 1, piece.from, piece.bytes});
  }
  EXPECT_EQ(to.difference(expected), "");
  EXPECT_EQ(from.difference(), "");
}

TEST_P(NvlinkCopies, OnePastTheEndIsRefusedAndTouchesNothing) {
  const Way& way = std::get<0>(GetParam());
  const GpuMemory from(owner(way.from_lender), way.from_gpu, 3);
  const GpuMemory to(owner(way.to_lender), way.to_gpu, 4);
  void* const queue = chosen_stream();
  const std::uint64_t beyond = ~std::uint64_t{0};
  const std::uint64_t base = way.from_lender ? Buffer::kGuard : 0;
  const std::uint64_t target_base = way.to_lender ? Buffer::kGuard : 0;
  struct {
    std::uint64_t from, to, bytes;
  } const pieces[] = {{GpuMemory::kEnd, 0, 1},
                      {GpuMemory::kEnd - 1, 0, 2},
                      {0, GpuMemory::kEnd, 1},
                      {0, GpuMemory::kEnd - 4096, 4097},
                      {0, 0, GpuMemory::kWhole + 1},
                      {0, 0, beyond},
                      // offsets whose sum with a size or a base overflows to a small number
                      {beyond - base, 0, 1},
                      {beyond - base - 15, 0, 32},
                      {0, beyond - target_base, 2},
                      {0, beyond - target_base - 4095, 4096}};
  for (const auto& piece : pieces)
    EXPECT_EQ(transfer({from.at(piece.from), to.at(piece.to), piece.bytes, queue}),
              NVLINK_TRANSFER_INVALID_VALUE)
        << piece.from << " to " << piece.to << ", " << piece.bytes << " bytes";
  EXPECT_EQ(to.difference(), "");
}

std::string name_of(const Way& way) {
  const auto side = [](bool lent, int gpu) {
    return (lent ? "remote" : "local") + std::to_string(gpu);
  };
  return side(way.from_lender, way.from_gpu) + "_" + side(way.to_lender, way.to_gpu);
}

INSTANTIATE_TEST_SUITE_P(
    Every, NvlinkCopies,
    ::testing::Combine(::testing::Values(Way{true, false, 0, 1}, Way{true, false, 0, 0},
                                         Way{false, true, 0, 1}, Way{false, true, 1, 1},
                                         Way{true, true, 1, 0}, Way{true, true, 0, 0},
                                         Way{false, false, 1, 0}, Way{false, false, 1, 1}),
                       ::testing::Bool()),
    [](const auto& chosen) {
      return name_of(std::get<0>(chosen.param)) +
             (std::get<1>(chosen.param) ? "_created" : "_null");
    });

class NvlinkLarge : public NvlinkTransfer, public ::testing::WithParamInterface<Way> {};

/// Copies 1 GiB on a GPU, less where a CPU simulates one.
TEST_P(NvlinkLarge, EveryByte) {
  const std::uint64_t bytes = simulated() ? 70 * kMiB + 3 : std::uint64_t{1} << 30;
  const Way& way = GetParam();
  const GpuMemory from(way.from_lender ? &lender() : nullptr, way.from_gpu, 5, bytes);
  const GpuMemory to(way.to_lender ? &lender() : nullptr, way.to_gpu, 6, bytes);
  EXPECT_EQ(transfer({from.at(0), to.at(0), bytes, nullptr}), 0) << nvlink_transfer_last_error();
  EXPECT_EQ(to.difference({{0, 5, 0, bytes}}), "");
}

INSTANTIATE_TEST_SUITE_P(Every, NvlinkLarge,
                         ::testing::Values(Way{true, false, 0, 1}, Way{false, true, 0, 1},
                                           Way{true, true, 0, 1}, Way{false, false, 0, 1}),
                         [](const auto& way) { return name_of(way.param); });

class NvlinkStreams : public NvlinkTransfer {};

TEST_F(NvlinkStreams, OneOfAnotherGpuIsRefused) {
  const GpuMemory from(&lender(), 0, 1), to(nullptr, 1, 2);
  EXPECT_EQ(transfer({from.at(0), to.at(0), 4096, stream(1)}), NVLINK_TRANSFER_INVALID_STREAM);
  EXPECT_NE(std::string(nvlink_transfer_last_error()), "");
  EXPECT_EQ(to.difference(), "");
}

/// cudaStreamLegacy and cudaStreamPerThread.
TEST_F(NvlinkStreams, TheRuntimesDefaultOnesAreTheSourceGpus) {
  const GpuMemory from(nullptr, 1, 1), to(&lender(), 0, 2);
  for (std::uint64_t number = 1; number <= 2; ++number)
    EXPECT_EQ(transfer({from.at(0), to.at(4096 * number), 4096,
                        reinterpret_cast<void*>(number)}),  // NOLINT(*-int-to-ptr)
              0)
        << nvlink_transfer_last_error();
  EXPECT_EQ(to.difference({{4096, 1, 0, 4096}, {8192, 1, 0, 4096}}), "");
}

TEST_F(NvlinkStreams, TheCopyComesBehindWhatIsInTheStream) {
  GpuMemory from(nullptr, 0, 1), news(nullptr, 0, 2);
  const GpuMemory to(&lender(), 1, 3);
  HeldStream held;
  held.hold();
  held.copy(from.buffer().data(), news.buffer().data(), kMiB);
  auto moved = std::async(std::launch::async, [&] {
    return transfer({from.at(0), to.at(0), kMiB, held.order().handle});
  });
  EXPECT_EQ(moved.wait_for(50ms), std::future_status::timeout);
  held.go_on();
  EXPECT_EQ(moved.get(), 0);
  EXPECT_EQ(to.difference({{0, 2, 0, kMiB}}), "");
}

/// Allocates before the capture begins, so that only the library makes calls during it.
class NvlinkCapture : public NvlinkTransfer {
 protected:
  void SetUp() override {
    NvlinkTransfer::SetUp();
    if (IsSkipped()) return;
    from = std::make_unique<GpuMemory>(&lender(), 0, 1);
    to = std::make_unique<GpuMemory>(nullptr, 1, 2);
    other = stream(0);
    capturing = stream(0);
    ASSERT_TRUE(graphs);
    ASSERT_EQ(graphs.cuStreamBeginCapture(capturing, cuda::CU_STREAM_CAPTURE_MODE_GLOBAL),
              cuda::CUDA_SUCCESS);
  }
  void TearDown() override {
    if (to == nullptr) return;
    cuda::CUgraph graph = nullptr;
    EXPECT_EQ(graphs.cuStreamEndCapture(capturing, &graph), cuda::CUDA_SUCCESS)
        << "the capture was disturbed";
    if (graph != nullptr) {
      EXPECT_EQ(graphs.cuGraphDestroy(graph), cuda::CUDA_SUCCESS);
    }
    EXPECT_EQ(to->difference(expected), "");
  }

  const cuda::GraphEntries graphs = cuda::GraphEntries::find(cuda::driver_entry);
  std::unique_ptr<GpuMemory> from, to;
  std::vector<Expected> expected;  // final contents of `to`
  cuda::CUstream other = nullptr, capturing = nullptr;
};

TEST_F(NvlinkCapture, ACapturingStreamIsRefused) {
  EXPECT_EQ(transfer({from->at(0), to->at(0), kMiB, capturing}), NVLINK_TRANSFER_CAPTURING);
  std::uint64_t id = 0;
  EXPECT_EQ(begin({from->at(0), to->at(0), kMiB, capturing}, &id), NVLINK_TRANSFER_CAPTURING);
}

TEST_F(NvlinkCapture, ACaptureIsNotDisturbedByTransfersBesideIt) {
  EXPECT_EQ(transfer({from->at(0), to->at(0), kMiB, other}), 0) << nvlink_transfer_last_error();
  std::uint64_t id = 0;
  EXPECT_EQ(begin({from->at(0), to->at(kMiB), kMiB, other}, &id), 0)
      << nvlink_transfer_last_error();
  EXPECT_EQ(nvlink_transfer_wait(id, 10000), 0) << nvlink_transfer_last_error();
  expected = {{0, 1, 0, kMiB}, {kMiB, 1, 0, kMiB}};
}

}  // namespace copy_test
}  // namespace linkspan::test
