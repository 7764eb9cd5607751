// Memory that cudaMalloc did not make: ranges of chunks, as PyTorch's expandable segments map them,
// and stream-ordered pools.
#include <unistd.h>

#include <cstring>

#include "tests/driver_facts/fact.hpp"
#include "tests/support/memory_entries.hpp"

namespace linkspan::test {
namespace {

constexpr std::size_t kChunk = 2u << 20, kCount = 3;

/// Three chunks in a row on the first GPU, readable and writable there.
class Chunks : public Fact {
 protected:
  void SetUp() override {
    Fact::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    vmm = MemoryEntries::find();
    ASSERT_TRUE(vmm);
    for (auto& handle : handles) handle = create(kPosixFd);
    ASSERT_EQ(vmm.cuMemAddressReserve(&range, kCount * kChunk, 0, 0, 0), CUDA_SUCCESS);
    for (std::size_t i = 0; i < kCount; ++i) map(range + i * kChunk, handles[i]);
    allow(range, kCount * kChunk, 0);
  }
  void TearDown() override {
    if (range != 0) {
      EXPECT_EQ(vmm.cuMemUnmap(range, kCount * kChunk), CUDA_SUCCESS);
      EXPECT_EQ(vmm.cuMemAddressFree(range, kCount * kChunk), CUDA_SUCCESS);
      for (const auto handle : handles) EXPECT_EQ(cu->cuMemRelease(handle), CUDA_SUCCESS);
    }
    Fact::TearDown();
  }

  CUmemGenericAllocationHandle create(unsigned handle_types) {
    CUmemAllocationProp prop{};
    prop.type = 1;
    prop.requestedHandleTypes = handle_types;
    prop.location = {.type = 1, .id = 0};
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(vmm.cuMemCreate(&handle, kChunk, &prop, 0), CUDA_SUCCESS);
    return handle;
  }
  void map(CUdeviceptr address, CUmemGenericAllocationHandle handle) {
    EXPECT_EQ(vmm.cuMemMap(address, kChunk, 0, handle, 0), CUDA_SUCCESS);
  }
  void allow(CUdeviceptr address, std::size_t bytes, int gpu) {
    const CUmemAccessDesc access{.location = {.type = 1, .id = gpu}, .flags = 3};
    EXPECT_EQ(vmm.cuMemSetAccess(address, bytes, &access, 1), CUDA_SUCCESS);
  }
  std::uint64_t buffer_id(CUdeviceptr address) {
    unsigned long long id = 0;
    EXPECT_EQ(cu->cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address),
              CUDA_SUCCESS);
    return id;
  }
  static std::string number(CUresult result) {
    return std::to_string(static_cast<unsigned>(result));
  }

  MemoryEntries vmm;
  CUdeviceptr range = 0;
  CUmemGenericAllocationHandle handles[kCount]{};
};

TEST_F(Chunks, HaveNoLegacyHandle) {
  unsigned capable = 1;
  EXPECT_EQ(
      cu->cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, range),
      CUDA_SUCCESS);
  EXPECT_EQ(capable, 0u);
  CUipcMemHandle handle{};
  const CUresult r = cu->cuIpcGetMemHandle(&handle, range);
  EXPECT_NE(r, CUDA_SUCCESS);
  found("refused with " + number(r));
}

TEST_F(Chunks, ARangeIsWhatAnAddressTells) {
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  ASSERT_EQ(cu->cuMemGetAddressRange(&base, &bytes, range + kChunk + 5), CUDA_SUCCESS);
  EXPECT_GE(range + kChunk + 5 - base, 5u);
  found("from " + std::to_string(base - range) + ", " + std::to_string(bytes) +
        " bytes, of an address in the second of three chunks of 2 MiB");
}

TEST_F(Chunks, BufferIdsTellAChunkFromALaterOne) {
  const std::uint64_t before = buffer_id(range + kChunk);
  const bool each = buffer_id(range) != before;
  EXPECT_EQ(vmm.cuMemUnmap(range + kChunk, kChunk), CUDA_SUCCESS);
  map(range + kChunk, handles[1]);
  allow(range + kChunk, kChunk, 0);
  const std::uint64_t again = buffer_id(range + kChunk);
  EXPECT_EQ(vmm.cuMemUnmap(range + kChunk, kChunk), CUDA_SUCCESS);
  EXPECT_EQ(cu->cuMemRelease(handles[1]), CUDA_SUCCESS);
  handles[1] = create(kPosixFd);
  map(range + kChunk, handles[1]);
  allow(range + kChunk, kChunk, 0);
  const std::uint64_t other = buffer_id(range + kChunk);
  found(std::string(each ? "one for each chunk" : "one for all chunks") +
        "; the same chunk mapped " + "again: " + (again == before ? "the same" : "another") +
        "; a new chunk at its address: " + (other == before ? "the same" : "another"));
}

TEST_F(Chunks, ACopyCrossesTheirBorders) {
  const CUstream stream = new_stream();
  std::byte* const host = new_pinned(kChunk);
  std::memset(host, 0x5c, kChunk);
  EXPECT_EQ(cu->cuMemcpyAsync(range + kChunk / 2, address_of(host), kChunk, stream), CUDA_SUCCESS);
  EXPECT_EQ(cu->cuStreamSynchronize(stream), CUDA_SUCCESS);
  std::memset(host, 0, kChunk);
  EXPECT_EQ(cu->cuMemcpyAsync(address_of(host), range + kChunk / 2, kChunk, stream), CUDA_SUCCESS);
  EXPECT_EQ(cu->cuStreamSynchronize(stream), CUDA_SUCCESS);
  for (std::size_t i = 0; i < kChunk; ++i) ASSERT_EQ(host[i], std::byte{0x5c}) << i;
}

TEST_F(Chunks, AnInteriorAddressFindsItsChunkAndSharesIt) {
  CUmemGenericAllocationHandle retained = 0;
  ASSERT_EQ(cu->cuMemRetainAllocationHandle(&retained, reinterpret_cast<void*>(range + kChunk + 7)),
            CUDA_SUCCESS);
  int fd = -1;
  ASSERT_EQ(vmm.cuMemExportToShareableHandle(&fd, retained, kPosixFd, 0), CUDA_SUCCESS);
  CUmemGenericAllocationHandle imported = 0;
  ASSERT_EQ(vmm.cuMemImportFromShareableHandle(
                &imported, reinterpret_cast<void*>(static_cast<std::uintptr_t>(fd)), kPosixFd),
            CUDA_SUCCESS);
  EXPECT_EQ(::close(fd), 0);
  CUdeviceptr second = 0;
  ASSERT_EQ(vmm.cuMemAddressReserve(&second, kChunk, 0, 0, 0), CUDA_SUCCESS);
  map(second, imported);
  allow(second, kChunk, 0);
  const CUstream stream = new_stream();
  std::byte* const host = new_pinned(4096);
  EXPECT_EQ(cu->cuMemsetD8Async(range + kChunk, 0x77, kChunk, stream), CUDA_SUCCESS);
  EXPECT_EQ(cu->cuMemcpyAsync(address_of(host), second, 4096, stream), CUDA_SUCCESS);
  EXPECT_EQ(cu->cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(host[0], std::byte{0x77});
  EXPECT_EQ(host[4095], std::byte{0x77});
  EXPECT_EQ(vmm.cuMemUnmap(second, kChunk), CUDA_SUCCESS);
  EXPECT_EQ(vmm.cuMemAddressFree(second, kChunk), CUDA_SUCCESS);
  EXPECT_EQ(cu->cuMemRelease(imported), CUDA_SUCCESS);
  EXPECT_EQ(cu->cuMemRelease(retained), CUDA_SUCCESS);
}

TEST_F(Chunks, WithoutAHandleTypeOneIsNotExported) {
  const CUmemGenericAllocationHandle none = create(0);
  int fd = -1;
  const CUresult r = vmm.cuMemExportToShareableHandle(&fd, none, kPosixFd, 0);
  EXPECT_NE(r, CUDA_SUCCESS);
  EXPECT_EQ(cu->cuMemRelease(none), CUDA_SUCCESS);
  found("refused with " + number(r));
}

TEST_F(Chunks, AnotherGpuCopiesFromThemWithAccessOnly) {
  if (!with_gpus(2)) return;
  const CUstream stream = new_stream(1);
  const CUdeviceptr there = new_memory(1);
  const Current current(*cu, contexts[1]);
  const CUresult without = cu->cuMemcpyAsync(there, range, 4096, stream);
  const CUresult ended = without == CUDA_SUCCESS ? cu->cuStreamSynchronize(stream) : without;
  allow(range, kCount * kChunk, 1);
  EXPECT_EQ(cu->cuMemcpyAsync(there, range, 4096, stream), CUDA_SUCCESS);
  EXPECT_EQ(cu->cuStreamSynchronize(stream), CUDA_SUCCESS);
  found("without it " + number(ended) + ", with it 0");
}

TEST_F(Chunks, UnmappingBesideAHeldStream) {
  constexpr std::size_t kGate = 0;
  const CUstream held = new_stream();
  hold(held, kGate);
  std::atomic<bool> unmapped = false;
  std::thread unmapper([&] {
    const Current current(*cu, contexts[0]);
    EXPECT_EQ(vmm.cuMemUnmap(range + kChunk, kChunk), CUDA_SUCCESS);
    unmapped = true;
  });
  const bool waits = stays_false([&] { return unmapped.load(); });
  release(kGate);
  unmapper.join();
  map(range + kChunk, handles[1]);
  found(waits ? "waits" : "does not wait");
}

/// Memory of a stream-ordered pool of the test's, with file descriptors as its handles, or none.
class Pools : public Fact {
 protected:
  void SetUp() override {
    Fact::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    vmm = MemoryEntries::find();
    ASSERT_TRUE(vmm);
  }
  CUmemoryPool pool(unsigned handle_types) {
    CUmemPoolProps props{};
    props.allocType = 1;
    props.handleTypes = handle_types;
    props.location = {.type = 1, .id = 0};
    CUmemoryPool made = nullptr;
    EXPECT_EQ(vmm.cuMemPoolCreate(&made, &props), CUDA_SUCCESS);
    return made;
  }
  MemoryEntries vmm;
};

TEST_F(Pools, OnlyThoseWithAHandleTypeAreShared) {
  const CUstream stream = new_stream();
  std::string seen;
  for (const unsigned types : {0u, kPosixFd}) {
    const CUmemoryPool made = pool(types);
    CUdeviceptr memory = 0;
    ASSERT_EQ(vmm.cuMemAllocFromPoolAsync(&memory, 1u << 20, made, stream), CUDA_SUCCESS);
    ASSERT_EQ(cu->cuStreamSynchronize(stream), CUDA_SUCCESS);
    CUipcMemHandle legacy{};
    EXPECT_NE(cu->cuIpcGetMemHandle(&legacy, memory), CUDA_SUCCESS);
    int fd = -1;
    CUmemPoolPtrExportData data{};
    const CUresult handle = vmm.cuMemPoolExportToShareableHandle(&fd, made, kPosixFd, 0);
    const CUresult pointer = vmm.cuMemPoolExportPointer(&data, memory);
    EXPECT_EQ(handle == CUDA_SUCCESS, types == kPosixFd);
    CUmemGenericAllocationHandle retained = 0;
    const CUresult chunk =
        cu->cuMemRetainAllocationHandle(&retained, reinterpret_cast<void*>(memory));
    if (chunk == CUDA_SUCCESS) {
      EXPECT_EQ(cu->cuMemRelease(retained), CUDA_SUCCESS);
    }
    seen += std::string(types == 0 ? "without: pool " : "; with: pool ") +
            std::to_string(static_cast<unsigned>(handle)) + ", pointer " +
            std::to_string(static_cast<unsigned>(pointer)) + ", its chunk " +
            std::to_string(static_cast<unsigned>(chunk));
    if (fd >= 0) ::close(fd);
    EXPECT_EQ(vmm.cuMemFreeAsync(memory, stream), CUDA_SUCCESS);
    EXPECT_EQ(cu->cuStreamSynchronize(stream), CUDA_SUCCESS);
    EXPECT_EQ(vmm.cuMemPoolDestroy(made), CUDA_SUCCESS);
  }
  found(seen);
}

}  // namespace
}  // namespace linkspan::test
