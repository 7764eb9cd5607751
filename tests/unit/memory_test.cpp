#include "cuda/memory.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "tests/unit/cuda_fixture.hpp"

namespace linkspan::cuda {
namespace memory_test {

using MemoryOnDevice = OnDevice;

TEST_F(MemoryOnDevice, BytesGoThroughEachKindAndComeBack) {
  constexpr std::size_t kBytes = 70001;
  alignas(4096) static std::array<std::byte, 73728> memory;
  Result<Stream> stream = Stream::create(*scope);
  Result<PinnedBuffer> pinned = PinnedBuffer::create(*scope, kBytes);
  Result<DeviceBuffer> buffer = DeviceBuffer::create(*scope, kBytes);
  Result<HostRegistration> registered =
      HostRegistration::create(*scope, memory.data(), memory.size());
  ASSERT_TRUE(stream.ok() && pinned.ok() && buffer.ok() && registered.ok());
  EXPECT_EQ(pinned->bytes(), kBytes);
  EXPECT_EQ(registered->data(), memory.data());
  for (std::size_t i = 0; i < kBytes; ++i) pinned->data()[i] = pattern(i, 1);

  const Driver& driver = device->driver();
  ASSERT_EQ(
      driver.cuMemcpyAsync(buffer->address(), pinned->device_address(), kBytes, stream->get()),
      CUDA_SUCCESS);
  ASSERT_EQ(
      driver.cuMemcpyAsync(registered->device_address(), buffer->address(), kBytes, stream->get()),
      CUDA_SUCCESS);
  finish(*stream);
  EXPECT_EQ(std::memcmp(memory.data(), pinned->data(), kBytes), 0);
}

TEST_F(MemoryOnDevice, WhatIsPinnedAlreadyIsBusyAndStaysPinned) {
  alignas(4096) static std::array<std::byte, 16384> memory;
  {
    const Result<HostRegistration> first =
        HostRegistration::create(*scope, memory.data(), memory.size());
    ASSERT_TRUE(first.ok());
    EXPECT_EQ(HostRegistration::create(*scope, memory.data(), memory.size()).status().code(),
              Code::busy);
    EXPECT_EQ(topology->query(memory.data())->kind, MemoryKind::pinned);
  }
  EXPECT_TRUE(HostRegistration::create(*scope, memory.data(), memory.size()).ok());
}

TEST_F(MemoryOnDevice, AMoveMovesTheOwner) {
  Result<PinnedBuffer> first = PinnedBuffer::create(*scope, 4096);
  Result<PinnedBuffer> second = PinnedBuffer::create(*scope, 8192);
  ASSERT_TRUE(first.ok() && second.ok());
  std::byte* const kept = second->data();
  {
    PinnedBuffer target = *std::move(first);
    target = *std::move(second);
    EXPECT_EQ(target.data(), kept);
    EXPECT_EQ(target.bytes(), 8192u);
    EXPECT_EQ(topology->query(kept)->kind, MemoryKind::pinned);
  }
  EXPECT_EQ(topology->query(kept)->kind, MemoryKind::host);
}

TEST_F(MemoryOnDevice, NothingIsNotAnAllocation) {
  EXPECT_FALSE(DeviceBuffer::create(*scope, 0).ok());
}

}  // namespace memory_test
}  // namespace linkspan::cuda
