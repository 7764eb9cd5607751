#include "tests/support/made_memory.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "cuda/stream.hpp"
#include "tests/support/take.hpp"

namespace linkspan::test {
namespace {

void check(const cuda::Device& device, cuda::CUresult result, const char* call) {
  if (result != cuda::CUDA_SUCCESS) must(to_status(device.driver(), result, call));
}

/// Fails the test after a driver error, such as a lost context, without an exception: destructors
/// call it.
void expect(const cuda::Device& device, cuda::CUresult result, const char* call) {
  EXPECT_EQ(result, cuda::CUDA_SUCCESS) << to_status(device.driver(), result, call).to_string();
}

}  // namespace

ChunkRow::ChunkRow(const cuda::Device& device, std::uint64_t bytes, bool shared)
    : device_(device),
      entries_(cuda::MemoryEntries::find()),
      shared_(shared),
      mapped_(std::max<std::size_t>((bytes + kChunk - 1) / kChunk, 3)) {
  const auto scope = take(device.enter());
  cuda::CUdeviceptr base = 0;
  check(device, device.driver().cuMemAddressReserve(&base, mapped_.size() * kChunk, 0, 0, 0),
        "cuMemAddressReserve");
  base_ = base;
  for (std::size_t i = 0; i < mapped_.size(); ++i) map(i);
}

ChunkRow::~ChunkRow() {
  const auto scope = device_.enter();
  EXPECT_TRUE(scope.ok()) << scope.status().to_string();
  const cuda::Driver& driver = device_.driver();
  for (std::size_t i = 0; i < mapped_.size(); ++i)
    if (mapped_[i]) expect(device_, driver.cuMemUnmap(base_ + i * kChunk, kChunk), "cuMemUnmap");
  expect(device_, driver.cuMemAddressFree(base_, mapped_.size() * kChunk), "cuMemAddressFree");
}

void ChunkRow::remap(std::size_t i) {
  unmap(i);
  map(i);
}

void ChunkRow::unmap(std::size_t i) {
  const auto scope = take(device_.enter());
  check(device_, device_.driver().cuMemUnmap(base_ + i * kChunk, kChunk), "cuMemUnmap");
  mapped_[i] = false;
}

void ChunkRow::map(std::size_t i) {
  const auto scope = take(device_.enter());
  const cuda::Driver& driver = device_.driver();
  const cuda::CUmemLocation here{.type = cuda::CU_MEM_LOCATION_TYPE_DEVICE,
                                 .id = device_.info().ordinal};
  cuda::CUmemAllocationProp prop{};
  prop.type = 1;
  prop.requestedHandleTypes = shared_ ? cuda::kPosixFd : 0;
  prop.location = here;
  cuda::CUmemGenericAllocationHandle handle = 0;
  check(device_, entries_.cuMemCreate(&handle, kChunk, &prop, 0), "cuMemCreate");
  check(device_, driver.cuMemMap(base_ + i * kChunk, kChunk, 0, handle, 0), "cuMemMap");
  check(device_, driver.cuMemRelease(handle), "cuMemRelease");  // the mapping holds it
  const cuda::CUmemAccessDesc access{.location = here,
                                     .flags = cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  check(device_, driver.cuMemSetAccess(base_ + i * kChunk, kChunk, &access, 1), "cuMemSetAccess");
  mapped_[i] = true;
}

PoolMemory::PoolMemory(const cuda::Device& device, std::uint64_t bytes, bool shared)
    : device_(device) {
  const auto entries = cuda::MemoryEntries::find();
  const auto scope = take(device.enter());
  const auto stream = take(cuda::Stream::create(scope));
  cuda::CUmemPoolProps props{};
  props.allocType = 1;
  props.handleTypes = shared ? cuda::kPosixFd : 0;
  props.location = {.type = cuda::CU_MEM_LOCATION_TYPE_DEVICE, .id = device.info().ordinal};
  check(device, entries.cuMemPoolCreate(&pool_, &props), "cuMemPoolCreate");
  check(device, entries.cuMemAllocFromPoolAsync(&base_, bytes, pool_, stream.get()),
        "cuMemAllocFromPoolAsync");
  check(device, device.driver().cuStreamSynchronize(stream.get()), "cuStreamSynchronize");
}

PoolMemory::~PoolMemory() {
  const auto scope = device_.enter();
  EXPECT_TRUE(scope.ok()) << scope.status().to_string();
  expect(device_, device_.driver().cuMemFree(base_), "cuMemFree");
  expect(device_, device_.driver().cuMemPoolDestroy(pool_), "cuMemPoolDestroy");
}

}  // namespace linkspan::test
