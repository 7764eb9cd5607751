#include "cuda/topology.hpp"

#include <gtest/gtest.h>

#include <stdlib.h>

#include <array>
#include <set>
#include <thread>

#include "tests/support/fake_cuda/controls.hpp"
#include "tests/unit/cuda_fixture.hpp"

namespace linkspan::cuda {
namespace topology_test {

std::uint64_t number(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

const void* pointer(std::uint64_t address) { return reinterpret_cast<const void*>(address); }

TEST(Topology, WithoutADriverSaysWhy) {
  const Result<std::unique_ptr<Topology>> topology = Topology::create();
  if (!topology.ok()) {
    EXPECT_EQ(topology.status().code(), Code::unsupported);
    EXPECT_FALSE(topology.status().what().empty());
  } else {
    EXPECT_FALSE((*topology)->devices().empty());
  }
}

using TopologyOnDevice = OnDevice;

TEST_F(TopologyOnDevice, NamesEachGpuOnce) {
  std::set<GpuUuid> uuids;
  for (const DeviceInfo& info : topology->devices()) {
    EXPECT_TRUE(uuids.insert(info.uuid).second);
    EXPECT_NE(info.uuid, GpuUuid{});
    EXPECT_FALSE(info.name.empty());
    EXPECT_GE(info.sm, 50);
    EXPECT_GT(info.sm_count, 0);
    EXPECT_GT(info.memory_bytes, 0u);
    EXPECT_EQ(topology->find(info.uuid), &info);
  }
  EXPECT_EQ(topology->find(GpuUuid{}), nullptr);
}

TEST_F(TopologyOnDevice, ActivatesEachGpuOnceWhoeverAsks) {
  EXPECT_EQ(topology->active(device->info().uuid), device);
  for (const DeviceInfo& info : topology->devices()) {
    std::array<const Device*, 4> seen{};
    {
      std::array<std::jthread, 4> threads;
      for (std::size_t i = 0; i < threads.size(); ++i)
        threads[i] = std::jthread([&, i] {
          const Result<const Device*> activated = topology->activate(info.uuid);
          seen[i] = activated.ok() ? *activated : nullptr;
        });
    }
    ASSERT_NE(seen[0], nullptr);
    for (const Device* other : seen) EXPECT_EQ(other, seen[0]);
    EXPECT_EQ(seen[0]->info().uuid, info.uuid);
  }
  EXPECT_EQ(topology->all_active().size(), topology->devices().size());
}

TEST_F(TopologyOnDevice, TellsWhetherAtomicsReachAnotherGpu) {
  EXPECT_TRUE(has_native_atomics(*device, device->info()));
  if (!test::FakeCuda::find() || topology->devices().size() < 2) return;
  const DeviceInfo& other = topology->devices()[1];
  EXPECT_TRUE(has_native_atomics(*device, other));
  ASSERT_EQ(::setenv("FAKE_CUDA_PEER", "pcie", 1), 0);
  EXPECT_FALSE(has_native_atomics(*device, other));
  EXPECT_TRUE(has_peer_access(*device, other).ok());
  ASSERT_EQ(::unsetenv("FAKE_CUDA_PEER"), 0);
}

TEST_F(TopologyOnDevice, RefusesAGpuThatIsNotThere) {
  EXPECT_EQ(topology->activate(GpuUuid{}).status().code(), Code::not_found);
  EXPECT_EQ(topology->active(GpuUuid{}), nullptr);
}

TEST_F(TopologyOnDevice, KernelsAreThereOrItSaysWhyNot) {
  EXPECT_EQ(device->copy_blocks() != nullptr, device->kernels().ok());
}

TEST_F(TopologyOnDevice, QueryTellsTheWholeAllocation) {
  constexpr std::size_t kBytes = (3u << 20) + 4096;
  Result<DeviceBuffer> buffer = DeviceBuffer::create(*scope, kBytes);
  ASSERT_TRUE(buffer.ok()) << buffer.status().to_string();
  scope.reset();  // no current context from here on
  for (const std::uint64_t offset : {std::uint64_t{0}, std::uint64_t{2097155}}) {
    const Result<PointerFacts> facts = topology->query(pointer(buffer->address() + offset));
    ASSERT_TRUE(facts.ok()) << facts.status().to_string();
    EXPECT_EQ(facts->kind, MemoryKind::device);
    EXPECT_EQ(facts->gpu, device->info().uuid);
    EXPECT_EQ(facts->base, buffer->address());
    EXPECT_EQ(facts->bytes, kBytes);
    EXPECT_NE(facts->buffer_id, 0u);
    EXPECT_TRUE(facts->legacy_ipc);
  }
}

TEST_F(TopologyOnDevice, QueryTellsWhichGpuHoldsIt) {
  scope.reset();
  for (const DeviceInfo& info : topology->devices()) {
    const Result<const Device*> other = topology->activate(info.uuid);
    ASSERT_TRUE(other.ok()) << other.status().to_string();
    const auto inside = entered(**other);
    ASSERT_TRUE(inside);
    Result<DeviceBuffer> buffer = DeviceBuffer::create(*inside, 4096);
    ASSERT_TRUE(buffer.ok()) << buffer.status().to_string();
    const Result<PointerFacts> facts = topology->query(pointer(buffer->address()));
    ASSERT_TRUE(facts.ok()) << facts.status().to_string();
    EXPECT_EQ(facts->gpu, info.uuid) << "GPU " << info.ordinal;
  }
}

TEST_F(TopologyOnDevice, QueryTellsAllocationsApartThatHadTheSameAddress) {
  std::set<std::uint64_t> ids;
  for (int life = 0; life < 3; ++life) {
    const Result<DeviceBuffer> buffer = DeviceBuffer::create(*scope, 4u << 20);
    ASSERT_TRUE(buffer.ok());
    const Result<PointerFacts> facts = topology->query(pointer(buffer->address()));
    ASSERT_TRUE(facts.ok());
    EXPECT_TRUE(ids.insert(facts->buffer_id).second);
  }
}

TEST_F(TopologyOnDevice, QueryTellsHostMemoryThatTheDriverKnows) {
  Result<PinnedBuffer> pinned = PinnedBuffer::create(*scope, 100000);
  ASSERT_TRUE(pinned.ok()) << pinned.status().to_string();
  scope.reset();
  const Result<PointerFacts> facts = topology->query(pinned->data() + 5000);
  ASSERT_TRUE(facts.ok()) << facts.status().to_string();
  EXPECT_EQ(facts->kind, MemoryKind::pinned);
  EXPECT_EQ(facts->base, number(pinned->data()));
  EXPECT_GE(facts->bytes, 100000u);
  EXPECT_FALSE(facts->legacy_ipc);
}

TEST_F(TopologyOnDevice, QueryTellsRegisteredHostMemoryAsLongAsItIs) {
  constexpr std::size_t kBytes = 32768;
  alignas(4096) static std::array<std::byte, kBytes> memory;
  {
    Result<HostRegistration> registered =
        HostRegistration::create(*scope, memory.data(), memory.size());
    ASSERT_TRUE(registered.ok()) << registered.status().to_string();
    const Result<PointerFacts> facts = topology->query(&memory[4097]);
    ASSERT_TRUE(facts.ok()) << facts.status().to_string();
    EXPECT_EQ(facts->kind, MemoryKind::pinned);
    EXPECT_EQ(facts->base, number(memory.data()));
    EXPECT_EQ(facts->bytes, kBytes);
  }
  const Result<PointerFacts> after = topology->query(&memory[4097]);
  ASSERT_TRUE(after.ok());
  EXPECT_EQ(after->kind, MemoryKind::host);
}

TEST_F(TopologyOnDevice, QueryTellsManagedMemory) {
  CUdeviceptr managed = 0;
  ASSERT_EQ(device->driver().cuMemAllocManaged(&managed, 65536, CU_MEM_ATTACH_GLOBAL),
            CUDA_SUCCESS);
  const Result<PointerFacts> facts = topology->query(pointer(managed + 7));
  EXPECT_EQ(device->driver().cuMemFree(managed), CUDA_SUCCESS);
  ASSERT_TRUE(facts.ok()) << facts.status().to_string();
  EXPECT_EQ(facts->kind, MemoryKind::managed);
  EXPECT_EQ(facts->base, managed);
  EXPECT_FALSE(facts->legacy_ipc);
}

TEST_F(TopologyOnDevice, QueryOfPlainMemoryIsHostAndNoError) {
  const std::vector<std::byte> heap(100);
  const int stack = 0;
  for (const void* plain : {static_cast<const void*>(heap.data()), static_cast<const void*>(&stack),
                            static_cast<const void*>(nullptr)}) {
    const Result<PointerFacts> facts = topology->query(plain);
    ASSERT_TRUE(facts.ok()) << facts.status().to_string();
    EXPECT_EQ(facts->kind, MemoryKind::host);
    EXPECT_EQ(facts->gpu, GpuUuid{});
    EXPECT_EQ(facts->base, 0u);
    EXPECT_EQ(facts->bytes, 0u);
  }
}

}  // namespace topology_test
}  // namespace linkspan::cuda
