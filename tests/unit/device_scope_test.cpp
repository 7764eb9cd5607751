#include "cuda/device_scope.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

#include "tests/unit/cuda_fixture.hpp"

namespace linkspan::cuda {
namespace device_scope_test {

/// Simulates a thread's driver state: capture mode and the stack of contexts.
struct Thread {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::vector<CUcontext> contexts;
  bool refuse_push = false;
};
thread_local Thread* here = nullptr;

CUcontext context(std::uintptr_t number) { return reinterpret_cast<CUcontext>(number); }

class DeviceScopeState : public ::testing::Test {
 protected:
  void SetUp() override {
    here = &thread;
    driver.cuThreadExchangeStreamCaptureMode = [](CUstreamCaptureMode* mode) {
      std::swap(*mode, here->mode);
      return CUDA_SUCCESS;
    };
    driver.cuCtxPushCurrent = [](CUcontext pushed) {
      if (here->refuse_push) return CUDA_ERROR_INVALID_CONTEXT;
      here->contexts.push_back(pushed);
      return CUDA_SUCCESS;
    };
    driver.cuCtxPopCurrent = [](CUcontext* popped) {
      *popped = here->contexts.back();
      here->contexts.pop_back();
      return CUDA_SUCCESS;
    };
    driver.cuGetErrorName = [](CUresult, const char**) { return CUDA_ERROR_INVALID_VALUE; };
    driver.cuGetErrorString = [](CUresult, const char**) { return CUDA_ERROR_INVALID_VALUE; };
  }
  void TearDown() override { here = nullptr; }

  Thread thread;
  Driver driver;
};

TEST_F(DeviceScopeState, LeavesNoTrace) {
  thread.contexts = {context(1)};
  thread.mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
  {
    const Result<DeviceScope> scope = DeviceScope::enter(driver, context(2));
    ASSERT_TRUE(scope.ok());
    EXPECT_EQ(scope->context(), context(2));
    EXPECT_EQ(thread.mode, CU_STREAM_CAPTURE_MODE_RELAXED);
    EXPECT_EQ(thread.contexts, (std::vector{context(1), context(2)}));
  }
  EXPECT_EQ(thread.mode, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  EXPECT_EQ(thread.contexts, std::vector{context(1)});
}

TEST_F(DeviceScopeState, NestsAndMoves) {
  {
    Result<DeviceScope> outer = DeviceScope::enter(driver, context(1));
    ASSERT_TRUE(outer.ok());
    {
      Result<DeviceScope> inner = DeviceScope::enter(driver, context(2));
      ASSERT_TRUE(inner.ok());
      const DeviceScope moved = *std::move(inner);
      EXPECT_EQ(thread.contexts.size(), 2u);
    }
    EXPECT_EQ(thread.mode, CU_STREAM_CAPTURE_MODE_RELAXED);
    EXPECT_EQ(thread.contexts, std::vector{context(1)});
  }
  EXPECT_EQ(thread.mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
  EXPECT_TRUE(thread.contexts.empty());
}

TEST_F(DeviceScopeState, AScopeInsideOneOfTheSameContextCallsNothing) {
  const Result<DeviceScope> outer = DeviceScope::enter(driver, context(1));
  ASSERT_TRUE(outer.ok());
  driver.cuThreadExchangeStreamCaptureMode = nullptr;
  driver.cuCtxPopCurrent = nullptr;
  const auto push = std::exchange(driver.cuCtxPushCurrent, nullptr);
  {
    const Result<DeviceScope> inner = DeviceScope::enter(driver, context(1));
    ASSERT_TRUE(inner.ok());
    EXPECT_EQ(inner->context(), context(1));
    const Result<DeviceScope> outside = DeviceScope::without_context(driver);
    ASSERT_TRUE(outside.ok());
    EXPECT_EQ(outside->context(), nullptr);
  }
  driver.cuThreadExchangeStreamCaptureMode = [](CUstreamCaptureMode* mode) {
    std::swap(*mode, here->mode);
    return CUDA_SUCCESS;
  };
  driver.cuCtxPopCurrent = [](CUcontext*) {
    here->contexts.pop_back();
    return CUDA_SUCCESS;
  };
  driver.cuCtxPushCurrent = push;
  {
    const Result<DeviceScope> other = DeviceScope::enter(driver, context(2));
    ASSERT_TRUE(other.ok());
    EXPECT_EQ(thread.contexts, (std::vector{context(1), context(2)}));
    const Result<DeviceScope> back = DeviceScope::enter(driver, context(1));
    ASSERT_TRUE(back.ok());
    EXPECT_EQ(thread.contexts, (std::vector{context(1), context(2), context(1)}));
  }
  EXPECT_EQ(thread.contexts, std::vector{context(1)});
}

TEST_F(DeviceScopeState, WithoutContextPushesNone) {
  {
    const Result<DeviceScope> scope = DeviceScope::without_context(driver);
    ASSERT_TRUE(scope.ok());
    EXPECT_EQ(thread.mode, CU_STREAM_CAPTURE_MODE_RELAXED);
    EXPECT_TRUE(thread.contexts.empty());
  }
  EXPECT_EQ(thread.mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

TEST_F(DeviceScopeState, ARefusedContextLeavesTheModeAsItWas) {
  thread.refuse_push = true;
  EXPECT_FALSE(DeviceScope::enter(driver, context(1)).ok());
  EXPECT_EQ(thread.mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

using DeviceScopeOnDevice = OnDevice;

TEST_F(DeviceScopeOnDevice, MakesTheDevicesContextCurrentAndPutsTheOldBack) {
  scope.reset();
  CUcontext before = nullptr, inside = nullptr, after = nullptr;
  ASSERT_EQ(device->driver().cuCtxGetCurrent(&before), CUDA_SUCCESS);
  {
    const Result<DeviceScope> entered = device->enter();
    ASSERT_TRUE(entered.ok());
    ASSERT_EQ(device->driver().cuCtxGetCurrent(&inside), CUDA_SUCCESS);
    EXPECT_EQ(inside, entered->context());
  }
  ASSERT_EQ(device->driver().cuCtxGetCurrent(&after), CUDA_SUCCESS);
  EXPECT_EQ(before, after);
}

}  // namespace device_scope_test
}  // namespace linkspan::cuda
