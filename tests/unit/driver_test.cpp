#include "cuda/driver.hpp"

#include <gtest/gtest.h>

namespace linkspan::cuda {
namespace driver_test {

/// Returns a table that knows the text of one error and nothing else.
Driver speaking() {
  Driver driver;
  driver.cuGetErrorName = [](CUresult error, const char** text) {
    *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : nullptr;
    return *text != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  };
  driver.cuGetErrorString = [](CUresult error, const char** text) {
    *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : nullptr;
    return *text != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  };
  return driver;
}

TEST(Driver, SaysInTheLoadersWordsWhyThereIsNone) {
  const Result<Driver> none = Driver::load("/nonexistent/libcuda.so.1");
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.status().code(), Code::unsupported);
  EXPECT_NE(none.status().what().find("/nonexistent/libcuda.so.1"), std::string::npos);
}

TEST(Driver, RefusesALibraryThatIsNoDriver) {
  const Result<Driver> other = Driver::load("libm.so.6");
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.status().code(), Code::unsupported);
  EXPECT_NE(other.status().what().find("libm.so.6"), std::string::npos);
}

TEST(Driver, AnswersTheSameEachTime) {
  const Result<const Driver*> first = Driver::get(), second = Driver::get();
  ASSERT_EQ(first.ok(), second.ok());
  if (first.ok()) {
    EXPECT_EQ(*first, *second);
  } else {
    EXPECT_EQ(first.status().code(), Code::unsupported);
  }
}

TEST(ToStatus, CarriesCallNumberAndWords) {
  const Driver driver = speaking();
  EXPECT_TRUE(to_status(driver, CUDA_SUCCESS, "cuMemAlloc").ok());
  const Status full = to_status(driver, CUDA_ERROR_OUT_OF_MEMORY, "cuMemAlloc");
  EXPECT_EQ(full.code(), Code::cuda);
  EXPECT_EQ(full.scope(), Scope::request);
  EXPECT_EQ(full.what(), "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2), out of memory");
  EXPECT_NE(full.to_string().find("driver_test.cpp"), std::string::npos);
  const Status strange = to_status(driver, static_cast<CUresult>(12345), "cuMemAlloc");
  EXPECT_EQ(strange.what(), "cuMemAlloc: CUDA error (12345)");
}

TEST(ToStatus, TellsWhatAnotherTryMayMend) {
  const Driver driver = speaking();
  EXPECT_EQ(to_status(driver, CUDA_ERROR_NOT_READY, "x").code(), Code::pending);
  EXPECT_EQ(to_status(driver, CUDA_ERROR_NOT_SUPPORTED, "x").code(), Code::unsupported);
  EXPECT_EQ(to_status(driver, CUDA_ERROR_NO_DEVICE, "x").code(), Code::unsupported);
  EXPECT_EQ(to_status(driver, CUDA_ERROR_NOT_PERMITTED, "x").code(), Code::permission_denied);
  EXPECT_EQ(to_status(driver, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "x").code(), Code::busy);
}

TEST(ToStatus, ALostContextIsTheProcesss) {
  const Driver driver = speaking();
  for (const CUresult lost :
       {CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_ECC_UNCORRECTABLE,
        CUDA_ERROR_DEINITIALIZED, CUDA_ERROR_TENSOR_MEMORY_LEAK, CUDA_ERROR_MPS_CLIENT_TERMINATED,
        CUDA_ERROR_EXTERNAL_DEVICE}) {
    EXPECT_TRUE(loses_context(lost));
    EXPECT_EQ(to_status(driver, lost, "cuStreamQuery").scope(), Scope::process);
    EXPECT_EQ(to_status(driver, lost, "cuStreamQuery").code(), Code::cuda);
  }
  for (const CUresult harmless : {CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY,
                                  CUDA_ERROR_NOT_READY, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED})
    EXPECT_FALSE(loses_context(harmless));
}

}  // namespace driver_test
}  // namespace linkspan::cuda
