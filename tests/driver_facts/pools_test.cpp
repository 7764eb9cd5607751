// Tests memory of stream-ordered pools, as cudaMallocAsync returns it.
#include <unistd.h>

#include "tests/driver_facts/far_process.hpp"
#include "tests/support/memory_entries.hpp"

namespace linkspan::test {
namespace pools_test {

/// Memory of a stream-ordered pool of the test's, with file descriptors as its handles, or none.
class Pools : public Fact {
 protected:
  void SetUp() override {
    Fact::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    vmm = MemoryEntries::find();
    ASSERT_TRUE(vmm);
  }
  std::uint64_t buffer_id(CUdeviceptr address) {
    unsigned long long id = 0;
    EXPECT_EQ(cu->cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address),
              CUDA_SUCCESS);
    return id;
  }
  std::vector<unsigned> import_there(FarProcess& far, CUmemoryPool made, CUdeviceptr memory,
                                     unsigned times) {
    int fd = -1;
    CUmemPoolPtrExportData data{};
    EXPECT_EQ(cu->cuMemPoolExportToShareableHandle(&fd, made, kPosixFd, 0), CUDA_SUCCESS);
    EXPECT_EQ(cu->cuMemPoolExportPointer(&data, memory), CUDA_SUCCESS);
    std::vector<base::Fd> fds;
    fds.emplace_back(fd);
    return far.import_pool(std::move(fds), data, times);
  }
  CUdeviceptr allocate(CUmemoryPool from, CUstream stream, std::size_t bytes = kBytes) {
    CUdeviceptr memory = 0;
    EXPECT_EQ(vmm.cuMemAllocFromPoolAsync(&memory, bytes, from, stream), CUDA_SUCCESS);
    return memory;
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
    const CUresult handle = cu->cuMemPoolExportToShareableHandle(&fd, made, kPosixFd, 0);
    const CUresult pointer = cu->cuMemPoolExportPointer(&data, memory);
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
    EXPECT_EQ(cu->cuMemPoolDestroy(made), CUDA_SUCCESS);
  }
  found(seen);
}

/// Tests what distinguishes an allocation from the next one, and where an allocation begins and
/// ends.
TEST_F(Pools, AnAddressTellsItsAllocation) {
  const CUstream stream = new_stream();
  const CUmemoryPool made = pool(kPosixFd);
  const CUdeviceptr one = allocate(made, stream), two = allocate(made, stream);
  ASSERT_EQ(cu->cuStreamSynchronize(stream), CUDA_SUCCESS);
  CUmemoryPool told = nullptr;
  EXPECT_EQ(cu->cuPointerGetAttribute(&told, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, one + 7),
            CUDA_SUCCESS);
  EXPECT_EQ(told, made);
  CUdeviceptr base = 0, start = 0;
  std::size_t bytes = 0, size = 0;
  EXPECT_EQ(cu->cuMemGetAddressRange(&base, &bytes, two + 5), CUDA_SUCCESS);
  EXPECT_EQ(cu->cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, two + 5),
            CUDA_SUCCESS);
  EXPECT_EQ(cu->cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, two + 5),
            CUDA_SUCCESS);
  EXPECT_EQ(base, two);
  EXPECT_GE(bytes, kBytes);
  const std::uint64_t first = buffer_id(one), second = buffer_id(two);
  EXPECT_EQ(vmm.cuMemFreeAsync(two, stream), CUDA_SUCCESS);
  ASSERT_EQ(cu->cuStreamSynchronize(stream), CUDA_SUCCESS);
  const CUdeviceptr again = allocate(made, stream);
  ASSERT_EQ(cu->cuStreamSynchronize(stream), CUDA_SUCCESS);
  found("of 1 MiB the range is " + std::to_string(bytes) + " bytes, by attributes from " +
        std::to_string(start - two) + " on " + std::to_string(size) +
        "; ids of two: " + (first == second ? "the same" : "differ") + "; a later one at " +
        (again == two ? "that address: " : "another address: ") +
        (buffer_id(again) == second ? "the same" : "another"));
  EXPECT_EQ(vmm.cuMemFreeAsync(one, stream), CUDA_SUCCESS);
  EXPECT_EQ(vmm.cuMemFreeAsync(again, stream), CUDA_SUCCESS);
  EXPECT_EQ(cu->cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(cu->cuMemPoolDestroy(made), CUDA_SUCCESS);
}

TEST_F(Pools, AnotherProcessMapsAnAllocation) {
  const CUstream stream = new_stream();
  const CUmemoryPool made = pool(kPosixFd);
  const CUdeviceptr other = allocate(made, stream), memory = allocate(made, stream);
  ASSERT_EQ(cu->cuMemsetD8Async(memory, 77, kBytes, stream), CUDA_SUCCESS);
  ASSERT_EQ(cu->cuStreamSynchronize(stream), CUDA_SUCCESS);
  FarProcess far;
  const std::vector<unsigned> answers = import_there(far, made, memory, 1);
  ASSERT_GE(answers.size(), 2u);
  EXPECT_EQ(answers[0], 0u);
  EXPECT_GE(answers[1], kBytes);
  EXPECT_EQ(far.look({0, kBytes - 1}), (std::vector<unsigned>{77, 77}));
  EXPECT_EQ(far.free_pool().at(1), 0u);
  found("its range there is " + std::to_string(answers[1]) + " bytes");
  EXPECT_EQ(vmm.cuMemFreeAsync(memory, stream), CUDA_SUCCESS);
  EXPECT_EQ(vmm.cuMemFreeAsync(other, stream), CUDA_SUCCESS);
  EXPECT_EQ(cu->cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(cu->cuMemPoolDestroy(made), CUDA_SUCCESS);
}

TEST_F(Pools, TwoImportsOfOneAllocation) {
  const CUstream stream = new_stream();
  const CUmemoryPool made = pool(kPosixFd);
  const CUdeviceptr memory = allocate(made, stream);
  ASSERT_EQ(cu->cuMemsetD8Async(memory, 77, kBytes, stream), CUDA_SUCCESS);
  ASSERT_EQ(cu->cuStreamSynchronize(stream), CUDA_SUCCESS);
  FarProcess far;
  ASSERT_EQ(import_there(far, made, memory, 2).size(), 4u);
  // Both imports have one address, and the first free ends both.
  EXPECT_EQ(far.free_pool(),
            (std::vector<unsigned>{1, 0, 0, CUDA_ERROR_INVALID_VALUE, 1, CUDA_ERROR_INVALID_VALUE,
                                   0, CUDA_ERROR_INVALID_VALUE}));
  EXPECT_EQ(vmm.cuMemFreeAsync(memory, stream), CUDA_SUCCESS);
  EXPECT_EQ(cu->cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(cu->cuMemPoolDestroy(made), CUDA_SUCCESS);
}

}  // namespace pools_test
}  // namespace linkspan::test
