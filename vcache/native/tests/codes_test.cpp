// Tests each code of the table, its text, and what a call leaves unchanged.
#include <climits>
#include <cstring>
#include <future>

#include "cuda/device_scope.hpp"
#include "cuda/handles.hpp"
#include "vcache/native/tests/fixture.hpp"

namespace linkspan::test {
namespace codes_test {

std::string last_error() { return nvlink_transfer_last_error(); }
bool tells(const std::string& word) { return last_error().find(word) != std::string::npos; }

/// A request that is invalid without a GPU, for calls that fail before they read it.
const Request kNowhere = {
    .from = {.gpu = 0, .pointer = 4096}, .to = {.gpu = 0, .pointer = 8192}, .bytes = 1};

TEST(NvlinkWithout, ADriver) {
  Lender child({"LINKSPAN_CUDA_LIBRARY=/nonexistent/libcuda.so.1"});
  const Lender::Told told = child.transfer({kNowhere, kNowhere});
  EXPECT_EQ(told.codes, (std::vector<int>{NVLINK_TRANSFER_NO_DRIVER, NVLINK_TRANSFER_NO_DRIVER}));
  EXPECT_NE(told.last_error.find("/nonexistent/libcuda.so.1"), std::string::npos)
      << told.last_error;
}

TEST(NvlinkWithout, ADriverNoBytesAreMovedAllTheSame) {
  Lender child({"LINKSPAN_CUDA_LIBRARY=/nonexistent/libcuda.so.1"});
  EXPECT_EQ(child.transfer({Request{}}).codes, std::vector<int>{0});
}

class NvlinkCodes : public NvlinkTransfer {
 protected:
  void SetUp() override {
    NvlinkTransfer::SetUp();
    if (IsSkipped()) return;
    from = std::make_unique<GpuMemory>(&lender(), 0, 1);
    here = std::make_unique<GpuMemory>(nullptr, 0, 2);
    to = std::make_unique<GpuMemory>(nullptr, 1, 3);
    whole = {.from = from->at(0), .to = to->at(0), .bytes = 4096};
  }
  void TearDown() override {
    if (to == nullptr) return;
    EXPECT_EQ(to->difference(expected), "");
    EXPECT_EQ(here->difference(), "");
  }

  std::unique_ptr<GpuMemory> from, here, to;
  Request whole;                   // a valid one
  std::vector<Expected> expected;  // final contents of `to`
};

TEST_F(NvlinkCodes, WhereNoGpuIsVisible) {
  Lender child({"CUDA_VISIBLE_DEVICES="});
  const Lender::Told told = child.transfer({kNowhere, Request{}});
  EXPECT_EQ(told.codes, (std::vector<int>{NVLINK_TRANSFER_NO_DEVICE, 0}));
  EXPECT_NE(told.last_error, "");
}

TEST_F(NvlinkCodes, AnOrdinalOfNoGpu) {
  const int beyond = static_cast<int>(topology()->devices().size());
  for (const int ordinal : {-1, INT_MIN, beyond, INT_MAX}) {
    Request wrong = whole;
    wrong.from.gpu = ordinal;
    EXPECT_EQ(transfer(wrong), NVLINK_TRANSFER_INVALID_DEVICE) << ordinal;
    EXPECT_TRUE(tells(std::to_string(ordinal))) << last_error();
    wrong = whole;
    wrong.to.gpu = ordinal;
    EXPECT_EQ(transfer(wrong), NVLINK_TRANSFER_INVALID_DEVICE) << ordinal;
    EXPECT_TRUE(tells(std::to_string(ordinal))) << last_error();
  }
}

TEST_F(NvlinkCodes, NeitherAHandleNorAPointer) {
  Request wrong = whole;
  wrong.from.handle.clear();
  EXPECT_EQ(transfer(wrong), NVLINK_TRANSFER_INVALID_DEVICE_POINTER);
  EXPECT_TRUE(tells("source")) << last_error();
  wrong = whole;
  wrong.to.pointer = 0;
  EXPECT_EQ(transfer(wrong), NVLINK_TRANSFER_INVALID_DEVICE_POINTER);
  EXPECT_TRUE(tells("target")) << last_error();
}

/// Null with a size, or a size of zero, means no handle: the pointer is used.
TEST_F(NvlinkCodes, HalfAHandleIsNone) {
  const IpcBytes& handle = from->handle();
  const auto call = [&](std::uint64_t pointer, const void* bytes, unsigned size) {
    return perform_direct_transfer(0, pointer, 1, whole.to.pointer, 4096, bytes, size, nullptr, 64,
                                   0, 0, nullptr);
  };
  EXPECT_EQ(call(0, nullptr, 64), NVLINK_TRANSFER_INVALID_DEVICE_POINTER);
  EXPECT_EQ(call(0, handle.data(), 0), NVLINK_TRANSFER_INVALID_DEVICE_POINTER);
  EXPECT_EQ(call(here->at(0).pointer, handle.data(), 0), 0) << last_error();
  expected = {{0, 2, 0, 4096}};
}

TEST_F(NvlinkCodes, AHandleBeyond64Bytes) {
  Request wrong = whole;
  wrong.from.handle.push_back(0);
  EXPECT_EQ(transfer(wrong), NVLINK_TRANSFER_INVALID_VALUE);
  EXPECT_TRUE(tells("65")) << last_error();
}

TEST_F(NvlinkCodes, AShorterHandleIsFilledUpWithZeros) {
  Request cut = whole;
  IpcBytes& handle = cut.from.handle;
  while (handle.size() > 1 && handle.back() == 0) handle.pop_back();
  if (simulated()) {
    EXPECT_LT(handle.size(), 64u) << "nothing to fill up";
  }
  EXPECT_EQ(transfer(cut), 0) << last_error();
  expected = {{0, 1, 0, 4096}};
}

TEST_F(NvlinkCodes, AHandleThatIsNone) {
  Request wrong = whole;
  wrong.from.handle.assign(64, 0xa5);
  EXPECT_EQ(transfer(wrong), NVLINK_TRANSFER_INVALID_VALUE);
  EXPECT_NE(last_error(), "");
  wrong.from.handle.assign(1, 0xa5);
  EXPECT_EQ(transfer(wrong), NVLINK_TRANSFER_INVALID_VALUE);
}

TEST_F(NvlinkCodes, MemoryOfTheHost) {
  const auto plain = take(Buffer::create(MemoryKind::host, 8192));
  const auto pinned = take(Buffer::create(MemoryKind::pinned, 8192));
  for (Buffer* host : {plain.get(), pinned.get()}) {
    host->fill(9);
    const Side side{.gpu = 0, .pointer = reinterpret_cast<std::uint64_t>(host->data())};
    EXPECT_EQ(transfer({side, whole.to, 4096}), NVLINK_TRANSFER_INVALID_VALUE);
    EXPECT_EQ(transfer({whole.from, side, 4096}), NVLINK_TRANSFER_INVALID_VALUE);
    EXPECT_EQ(host->difference(9, {}), "");
  }
}

TEST_F(NvlinkCodes, NoBytesWhateverTheRest) {
  EXPECT_EQ(transfer({}), 0);
  EXPECT_EQ(transfer({.from = {.gpu = -7, .handle = IpcBytes(65), .offset = ~std::uint64_t{0}},
                      .to = {.gpu = 99}}),
            0);
}

TEST_F(NvlinkCodes, TheTextIsOfTheThreadsLastFailure) {
  Request wrong = whole;
  wrong.from.gpu = 1234;
  EXPECT_EQ(transfer(wrong), NVLINK_TRANSFER_INVALID_DEVICE);
  std::async(std::launch::async, [&] {
    EXPECT_EQ(last_error(), "");
    wrong.from.gpu = 5678;
    EXPECT_EQ(transfer(wrong), NVLINK_TRANSFER_INVALID_DEVICE);
    EXPECT_TRUE(tells("5678")) << last_error();
  }).get();
  EXPECT_TRUE(tells("1234")) << last_error();
}

/// CUDA cannot open a handle in its own process, so it means the allocation that the pointer lies
/// in.
TEST_F(NvlinkCodes, AHandleOfThisVeryProcess) {
  const auto handle = take(cuda::export_ipc(device(0), here->at(0).pointer));
  IpcBytes bytes(handle.size());
  std::memcpy(bytes.data(), handle.data(), handle.size());
  constexpr std::uint64_t kInside = 12345;
  Request own = whole;
  // the pointer may be anywhere inside; the offset counts from the start of the allocation
  own.from = here->at(kInside);
  own.from.pointer += kInside;
  own.from.handle = bytes;
  own.from.offset = Buffer::kGuard + 77;
  EXPECT_EQ(transfer(own), 0) << last_error();
  expected = {{0, 2, 77, 4096}};
  own.from.offset = GpuMemory::kWhole - 4095;
  EXPECT_EQ(transfer(own), NVLINK_TRANSFER_INVALID_VALUE);
  // The same for a target.
  Request back = {.from = from->at(0), .to = own.from, .bytes = 4096};
  back.to.offset = Buffer::kGuard;
  EXPECT_EQ(transfer(back), 0) << last_error();
  EXPECT_EQ(here->difference({{0, 1, 0, 4096}}), "");
  here->fill(2);
}

TEST_F(NvlinkCodes, TheCallersContextAndCaptureModeStayAsTheyWere) {
  const cuda::Driver& driver = device(0).driver();
  Request wrong = whole;
  wrong.to.offset = GpuMemory::kEnd;
  const auto look = [&](cuda::CUcontext due) {
    for (const Request& each : {whole, wrong}) {
      (void)transfer(each);
      cuda::CUcontext now = nullptr;
      EXPECT_EQ(driver.cuCtxGetCurrent(&now), cuda::CUDA_SUCCESS);
      EXPECT_EQ(now, due);
      auto mode = cuda::CU_STREAM_CAPTURE_MODE_GLOBAL;
      EXPECT_EQ(driver.cuThreadExchangeStreamCaptureMode(&mode), cuda::CUDA_SUCCESS);
      EXPECT_EQ(mode, cuda::CU_STREAM_CAPTURE_MODE_GLOBAL);
    }
  };
  std::async(std::launch::async, [&] {
    look(nullptr);
    cuda::CUcontext popped = nullptr;
    for (const int gpu : {0, 1}) {
      EXPECT_EQ(driver.cuCtxPushCurrent(device(gpu).context()), cuda::CUDA_SUCCESS);
      look(device(gpu).context());
    }
    EXPECT_EQ(driver.cuCtxPopCurrent(&popped), cuda::CUDA_SUCCESS);
    EXPECT_EQ(popped, device(1).context());
    EXPECT_EQ(driver.cuCtxPopCurrent(&popped), cuda::CUDA_SUCCESS);
    EXPECT_EQ(popped, device(0).context());
  }).get();
  expected = {{0, 1, 0, 4096}};
}

/// The simulated driver takes peer access away (FAKE_CUDA_PEER=0).
TEST_F(NvlinkCodes, WhatIsStagedIsSaidOnceForAPair) {
  if (!simulated()) GTEST_SKIP() << "needs the simulated driver";
  Lender child({"FAKE_CUDA_PEER=0"});
  const Request request = {.from = from->at(0), .to = from->at(8192), .bytes = 4096};
  Request across = request;  // CUDA opens the target's handle on the target's GPU
  const GpuMemory target(&lender(), 1, 4);
  across.to = target.at(0);
  const Lender::Told told = child.transfer({request, across, across});
  EXPECT_EQ(told.codes, (std::vector<int>{0, 0, 0})) << told.last_error;
  EXPECT_EQ(told.staged, 2u);
  ASSERT_EQ(told.logged.size(), 1u);
  EXPECT_NE(told.logged[0].find("host memory"), std::string::npos) << told.logged[0];
  EXPECT_EQ(target.difference({{0, 1, 0, 4096}}), "");
}

}  // namespace codes_test
}  // namespace linkspan::test
