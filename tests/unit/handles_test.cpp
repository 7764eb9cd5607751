#include "cuda/handles.hpp"

#include <gtest/gtest.h>

#include "tests/unit/cuda_fixture.hpp"

namespace linkspan::cuda {
namespace handles_test {

// The conformance suite shows that a mapping reaches the other process's bytes, which needs two
// processes.
using HandlesOnDevice = OnDevice;

TEST_F(HandlesOnDevice, EveryAddressOfAnAllocationGivesItsHandle) {
  Result<DeviceBuffer> buffer = DeviceBuffer::create(*scope, 4u << 20);
  Result<DeviceBuffer> other = DeviceBuffer::create(*scope, 4u << 20);
  ASSERT_TRUE(buffer.ok() && other.ok());
  const Result<IpcHandle> base = export_ipc(*device, buffer->address());
  const Result<IpcHandle> inside = export_ipc(*device, buffer->address() + 3000001);
  const Result<IpcHandle> another = export_ipc(*device, other->address());
  ASSERT_TRUE(base.ok() && inside.ok() && another.ok());
  EXPECT_EQ(*base, *inside);
  EXPECT_NE(*base, *another);
}

TEST_F(HandlesOnDevice, WhatCannotBeLentIsUnsupported) {
  Result<PinnedBuffer> pinned = PinnedBuffer::create(*scope, 4096);
  ASSERT_TRUE(pinned.ok());
  const Result<IpcHandle> handle =
      export_ipc(*device, reinterpret_cast<std::uintptr_t>(pinned->data()));
  EXPECT_EQ(handle.status().code(), Code::unsupported) << handle.status().to_string();
}

TEST_F(HandlesOnDevice, AProcessDoesNotMapItsOwn) {
  Result<DeviceBuffer> buffer = DeviceBuffer::create(*scope, 4u << 20);
  ASSERT_TRUE(buffer.ok());
  const Result<IpcHandle> handle = export_ipc(*device, buffer->address());
  ASSERT_TRUE(handle.ok());
  EXPECT_EQ(IpcMapping::open(*device, *handle).status().code(), Code::unsupported);
}

TEST_F(HandlesOnDevice, RandomBytesAreCorrupt) {
  for (const unsigned seed : {0u, 1u, 77u}) {
    IpcHandle handle{};
    for (std::size_t i = 0; seed != 0 && i < handle.size(); ++i) handle[i] = pattern(i, seed);
    const Result<IpcMapping> mapping = IpcMapping::open(*device, handle);
    EXPECT_EQ(mapping.status().code(), Code::corrupt) << mapping.status().to_string();
  }
  EXPECT_TRUE(DeviceBuffer::create(*scope, 4096).ok());  // the context has survived it
}

}  // namespace handles_test
}  // namespace linkspan::cuda
