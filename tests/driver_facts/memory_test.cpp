// Tests what pointers reveal, what memory handles stand for, and which objects outlive others.
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <memory>
#include <set>

#include "cuda/kernels.hpp"
#include "memory/anonymous_ranges.hpp"
#include "tests/driver_facts/far_process.hpp"

namespace linkspan::test {
namespace memory_test {

constexpr std::uint64_t kFilled = 0x0101010101010101 * FarProcess::kFill;

class Identity : public Fact {
 protected:
  struct Told {
    CUcontext context = reinterpret_cast<CUcontext>(1);
    unsigned type = 9, managed = 9, legacy_ipc = 9;
    unsigned long long buffer = 9;
  };
  Told told(CUdeviceptr address) const {
    Told t;
    std::array attributes{CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                          CU_POINTER_ATTRIBUTE_IS_MANAGED,
                          CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                          CU_POINTER_ATTRIBUTE_BUFFER_ID};
    std::array<void*, attributes.size()> values{&t.context, &t.type, &t.managed, &t.legacy_ipc,
                                                &t.buffer};
    EXPECT_EQ(
        cu->cuPointerGetAttributes(attributes.size(), attributes.data(), values.data(), address),
        CUDA_SUCCESS);
    return t;
  }
};

TEST_F(Identity, PlainHostMemoryAnswersZerosAndSuccess) {
  const std::vector<std::byte> plain(4096);
  const Told t = told(address_of(plain.data()));
  EXPECT_EQ(t.context, nullptr);
  EXPECT_EQ(t.type, 0u);
  EXPECT_EQ(t.managed, 0u);
  EXPECT_EQ(t.legacy_ipc, 0u);
  EXPECT_EQ(t.buffer, 0u);
}

TEST_F(Identity, PointersAnswerAThreadWithoutAContext) {
  const CUdeviceptr memory = new_memory();
  std::thread([&] {
    const Told t = told(memory + 77);
    EXPECT_EQ(t.context, contexts[0]);
    EXPECT_EQ(t.type, unsigned{CU_MEMORYTYPE_DEVICE});
    EXPECT_EQ(t.managed, 0u);
    EXPECT_EQ(t.legacy_ipc, 1u);
    EXPECT_NE(t.buffer, 0u);
  }).join();
}

TEST_F(Identity, ManagedMemoryTellsThatItIs) {
  CUdeviceptr managed = 0;
  ASSERT_EQ(cu->cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(told(managed).managed, 1u);
  EXPECT_EQ(told(managed).legacy_ipc, 0u);
  EXPECT_EQ(cu->cuMemFree(managed), CUDA_SUCCESS);
}

TEST_F(Identity, AnAddressIsUsedAgainAndABufferIdIsNot) {
  constexpr int kTimes = 100;
  std::set<CUdeviceptr> addresses;
  std::set<unsigned long long> ids;
  for (int i = 0; i < kTimes; ++i) {
    CUdeviceptr memory = 0;
    ASSERT_EQ(cu->cuMemAlloc(&memory, 4u << 20), CUDA_SUCCESS);
    addresses.insert(memory);
    ids.insert(told(memory).buffer);
    ASSERT_EQ(cu->cuMemFree(memory), CUDA_SUCCESS);
  }
  found(std::to_string(addresses.size()) + " addresses and " + std::to_string(ids.size()) +
        " ids of " + std::to_string(kTimes) + " allocations");
  EXPECT_LT(addresses.size(), std::size_t{kTimes});
  EXPECT_EQ(ids.size(), std::size_t{kTimes});
}

TEST_F(Identity, DeviceMemoryIsExportedAsADmaBufInPagesOfTheHost) {
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const CUdeviceptr memory = new_memory();
  const auto exported = [&](CUdeviceptr address, std::uint64_t bytes) {
    int fd = -1;
    const CUresult r = cu->cuMemGetHandleForAddressRange(&fd, address, bytes,
                                                         CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    EXPECT_EQ(r == CUDA_SUCCESS, fd >= 0);
    if (fd >= 0) ::close(fd);
    return r;
  };
  EXPECT_EQ(exported(memory, kBytes), CUDA_SUCCESS);
  EXPECT_EQ(exported(memory + page, page), CUDA_SUCCESS);
  EXPECT_EQ(exported(memory + 8, page), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(exported(memory, page + 8), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Identity, AnInteriorAddressFindsItsAllocation) {
  const CUdeviceptr memory = new_memory(0, 3 * kBytes + 5);
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  for (const std::uint64_t at : {std::uint64_t{0}, std::uint64_t{kBytes + 7}, 3 * kBytes + 4}) {
    ASSERT_EQ(cu->cuMemGetAddressRange(&base, &bytes, memory + at), CUDA_SUCCESS);
    EXPECT_EQ(base, memory);
    EXPECT_EQ(bytes, 3 * kBytes + 5);
  }
}

TEST_F(Identity, MemoryIsPinnedOnceAndForAllGpus) {
  constexpr std::size_t kPage = 4096;
  void* mapped =
      mmap(nullptr, 4 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  auto* memory = static_cast<std::byte*>(mapped);
  constexpr unsigned kFlags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
  ASSERT_EQ(cu->cuMemHostRegister(memory, 2 * kPage, kFlags), CUDA_SUCCESS);
  const CUresult same = cu->cuMemHostRegister(memory, 2 * kPage, kFlags);
  const CUresult overlapping = cu->cuMemHostRegister(memory + kPage, 2 * kPage, kFlags);
  found("the same range again: " + std::to_string(same) +
        ", an overlapping one: " + std::to_string(overlapping));
  EXPECT_EQ(same, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(overlapping, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  for (const CUcontext context : contexts) {
    const Current current(*cu, context);
    CUdeviceptr address = 0;
    EXPECT_EQ(cu->cuMemHostGetDevicePointer(&address, memory, 0), CUDA_SUCCESS);
    EXPECT_NE(address, 0u);
  }
  EXPECT_EQ(cu->cuMemHostUnregister(memory), CUDA_SUCCESS);
  EXPECT_EQ(cu->cuMemHostUnregister(memory), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  munmap(mapped, 4 * kPage);
}

TEST_F(Identity, PinnedMemoryIsAnonymousAndTheKernelCopiesIt) {
  constexpr std::size_t kPinned = 8192;
  void* pinned = nullptr;
  ASSERT_EQ(cu->cuMemHostAlloc(&pinned, kPinned, 0), CUDA_SUCCESS);
  EXPECT_TRUE(memory::AnonymousRanges().contain(address_of(pinned), kPinned));
  std::uint64_t word = 77;
  iovec here{&word, sizeof word}, there{static_cast<std::byte*>(pinned) + 4097, sizeof word};
  EXPECT_EQ(process_vm_writev(getpid(), &here, 1, &there, 1, 0), 8) << std::strerror(errno);
  word = 0;
  EXPECT_EQ(process_vm_readv(getpid(), &here, 1, &there, 1, 0), 8) << std::strerror(errno);
  EXPECT_EQ(word, 77u);
  EXPECT_EQ(cu->cuMemFreeHost(pinned), CUDA_SUCCESS);
}

TEST_F(Identity, OrdinalsDifferBetweenProcesses) {
  if (!with_gpus(2)) return;
  CUuuid ours{};
  ASSERT_EQ(cu->cuDeviceGetUuid(&ours, 1), CUDA_SUCCESS);
  FarProcess far({"CUDA_VISIBLE_DEVICES=1"});
  EXPECT_EQ(far.uuid(0), std::string(ours.bytes, sizeof ours.bytes));
}

class Handles : public Fact {
 protected:
  static constexpr std::uint64_t kWhole = 4u << 20;  // no part of a block that others share

  CUresult open(const CUipcMemHandle& handle, CUdeviceptr* base) const {
    return cu->cuIpcOpenMemHandle(base, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  }
  /// Reads memory through `base`.
  std::uint64_t read(CUdeviceptr base) {
    const CUstream stream = new_stream();
    auto* seen = reinterpret_cast<std::uint64_t*>(new_pinned(4096));
    EXPECT_EQ(cu->cuMemcpyAsync(address_of(seen), base, sizeof *seen, stream), CUDA_SUCCESS);
    EXPECT_EQ(cu->cuStreamSynchronize(stream), CUDA_SUCCESS);
    return *seen;
  }
};

TEST_F(Handles, OneStandsForTheWholeAllocation) {
  FarProcess far;
  const CUipcMemHandle handle = far.lend(0, kWhole, kWhole / 2 + 4096);
  CUdeviceptr base = 0, start = 0;
  std::size_t bytes = 0;
  ASSERT_EQ(open(handle, &base), CUDA_SUCCESS);
  EXPECT_EQ(cu->cuMemGetAddressRange(&start, &bytes, base), CUDA_SUCCESS);
  EXPECT_EQ(start, base);
  EXPECT_EQ(bytes, kWhole);
  EXPECT_EQ(read(base), kFilled);
  EXPECT_EQ(read(base + kWhole - 8), kFilled);
  EXPECT_EQ(cu->cuIpcCloseMemHandle(base), CUDA_SUCCESS);
}

TEST_F(Handles, OpenedTwiceItIsOneMappingThatCounts) {
  FarProcess far;
  const CUipcMemHandle handle = far.lend(0, kWhole, 0);
  CUdeviceptr first = 0, second = 0;
  ASSERT_EQ(open(handle, &first), CUDA_SUCCESS);
  ASSERT_EQ(open(handle, &second), CUDA_SUCCESS);
  EXPECT_EQ(second, first);
  EXPECT_EQ(cu->cuIpcCloseMemHandle(first), CUDA_SUCCESS);
  EXPECT_EQ(read(first), kFilled);
  EXPECT_EQ(cu->cuIpcCloseMemHandle(first), CUDA_SUCCESS);
  EXPECT_NE(cu->cuIpcCloseMemHandle(first), CUDA_SUCCESS);
}

TEST_F(Handles, TheExporterCannotOpenItsOwn) {
  CUipcMemHandle handle{};
  CUdeviceptr base = 0;
  ASSERT_EQ(cu->cuIpcGetMemHandle(&handle, new_memory()), CUDA_SUCCESS);
  const CUresult r = open(handle, &base);
  found("answers " + std::to_string(r));
  EXPECT_EQ(r, CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(Handles, ALaterAllocationHasAnotherHandle) {
  std::vector<CUipcMemHandle> seen;
  int same_address = 0;
  CUdeviceptr last = 0;
  for (int i = 0; i < 20; ++i) {
    CUdeviceptr memory = 0;
    CUipcMemHandle handle{};
    ASSERT_EQ(cu->cuMemAlloc(&memory, 4u << 20), CUDA_SUCCESS);
    ASSERT_EQ(cu->cuIpcGetMemHandle(&handle, memory), CUDA_SUCCESS);
    for (const CUipcMemHandle& older : seen)
      EXPECT_NE(std::memcmp(&older, &handle, sizeof handle), 0) << "allocation " << i;
    seen.push_back(handle);
    same_address += memory == last ? 1 : 0;
    last = memory;
    ASSERT_EQ(cu->cuMemFree(memory), CUDA_SUCCESS);
  }
  found("as claimed, at the same address " + std::to_string(same_address) + " of 19 times");
}

TEST_F(Handles, MemoryOfCuMemAllocIsNoChunk) {
  CUmemGenericAllocationHandle chunk = 0;
  EXPECT_EQ(cu->cuMemRetainAllocationHandle(&chunk, reinterpret_cast<void*>(new_memory())),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Handles, HostMemoryAndManagedMemoryHaveNone) {
  CUipcMemHandle handle{};
  CUdeviceptr managed = 0;
  EXPECT_EQ(cu->cuIpcGetMemHandle(&handle, address_of(new_pinned())), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cu->cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(cu->cuIpcGetMemHandle(&handle, managed), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu->cuMemFree(managed), CUDA_SUCCESS);
}

TEST_F(Handles, OneOfADeadProcessIsRefused) {
  FarProcess far;
  const CUipcMemHandle handle = far.lend(0, kWhole, 0);
  far.kill();
  CUdeviceptr base = 0;
  const CUresult r = open(handle, &base);
  found("answers " + std::to_string(r));
  EXPECT_TRUE(r == CUDA_ERROR_INVALID_VALUE || r == CUDA_ERROR_INVALID_HANDLE) << r;
}

TEST_F(Handles, AMappingOutlivesItsExporter) {
  FarProcess far;
  CUdeviceptr base = 0;
  ASSERT_EQ(open(far.lend(0, kWhole, 0), &base), CUDA_SUCCESS);
  far.kill();
  EXPECT_EQ(read(base), kFilled);
  const CUstream stream = new_stream();
  EXPECT_EQ(cu->cuMemsetD8Async(base, 1, kWhole, stream), CUDA_SUCCESS);
  EXPECT_EQ(cu->cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(read(base), 0x0101010101010101u);
  EXPECT_EQ(cu->cuIpcCloseMemHandle(base), CUDA_SUCCESS);
}

// The importer sees one GPU, the memory lies on the other.
TEST_F(Handles, OneOfAnInvisibleGpuTellsOurOrdinal) {
  if (!with_gpus(2)) return;
  const CUdeviceptr memory = new_memory(1, kWhole);
  CUipcMemHandle handle{};
  {
    const Current current(*cu, contexts[1]);
    const CUstream stream = new_stream(1);
    ASSERT_EQ(cu->cuMemsetD8Async(memory, 3, kWhole, stream), CUDA_SUCCESS);
    ASSERT_EQ(cu->cuStreamSynchronize(stream), CUDA_SUCCESS);
    ASSERT_EQ(cu->cuIpcGetMemHandle(&handle, memory), CUDA_SUCCESS);
  }
  FarProcess far({"CUDA_VISIBLE_DEVICES=0"});
  const FarProcess::Seen seen = far.open(handle);
  EXPECT_EQ(seen.ordinal, 0);
  EXPECT_EQ(seen.bytes, kWhole);
  EXPECT_EQ(seen.first, 0x0303030303030303u);
}

class Death : public Fact {};

TEST_F(Death, NothingLandsAfterProcessAndSocketEnded) {
  const CUdeviceptr memory = new_memory(0, 4096);
  const CUstream stream = new_stream(0);
  ASSERT_EQ(cu->cuMemsetD8Async(memory, 0, 4096, stream), CUDA_SUCCESS);
  auto* seen = reinterpret_cast<std::uint64_t*>(new_pinned(4096));
  const auto poll = [&] {
    EXPECT_EQ(cu->cuMemcpyAsync(address_of(seen), memory, sizeof *seen, stream), CUDA_SUCCESS);
    EXPECT_EQ(cu->cuStreamSynchronize(stream), CUDA_SUCCESS);
    return *seen;
  };
  CUipcMemHandle handle{};
  ASSERT_EQ(cu->cuIpcGetMemHandle(&handle, memory), CUDA_SUCCESS);
  FarProcess far;
  far.count_in(handle);
  ASSERT_TRUE(eventually([&] { return poll() > 1000; }));
  far.kill();
  ASSERT_TRUE(far.hung_up());
  const std::uint64_t last = poll();
  EXPECT_TRUE(stays_false([&] { return poll() != last; }));
}

class Loss : public Fact {};

TEST_F(Loss, AStrayKernelEndsTheContextForGood) {
  if (embedded_images().empty()) GTEST_SKIP() << "needs a build with kernels";
  FarProcess far;
  std::string words;
  for (const auto& [name, answer] : far.lose()) {
    words += (words.empty() ? "" : ", ") + name + " " + std::to_string(answer);
    EXPECT_TRUE(loses_context(CUresult{answer})) << name << " answers " << answer;
  }
  found(words);
}

}  // namespace memory_test
}  // namespace linkspan::test
