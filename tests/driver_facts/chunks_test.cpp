// Tests ranges of chunks from cuMemCreate, as PyTorch's expandable segments map them.
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "tests/driver_facts/far_process.hpp"
#include "tests/support/memory_entries.hpp"

namespace linkspan::test {
namespace chunks_test {

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
    ASSERT_EQ(cu->cuMemAddressReserve(&range, kCount * kChunk, 0, 0, 0), CUDA_SUCCESS);
    for (std::size_t i = 0; i < kCount; ++i) map(range + i * kChunk, handles[i]);
    allow(range, kCount * kChunk, 0);
  }
  void TearDown() override {
    if (range != 0) end();
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
    EXPECT_EQ(cu->cuMemMap(address, kChunk, 0, handle, 0), CUDA_SUCCESS);
  }
  void allow(CUdeviceptr address, std::size_t bytes, int gpu) {
    const CUmemAccessDesc access{.location = {.type = 1, .id = gpu}, .flags = 3};
    EXPECT_EQ(cu->cuMemSetAccess(address, bytes, &access, 1), CUDA_SUCCESS);
  }
  std::uint64_t buffer_id(CUdeviceptr address) {
    unsigned long long id = 0;
    EXPECT_EQ(cu->cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address),
              CUDA_SUCCESS);
    return id;
  }
  std::vector<base::Fd> exported() {
    std::vector<base::Fd> fds;
    for (const auto handle : handles) {
      int fd = -1;
      EXPECT_EQ(cu->cuMemExportToShareableHandle(&fd, handle, kPosixFd, 0), CUDA_SUCCESS);
      fds.emplace_back(fd);
    }
    return fds;
  }
  /// Writes the first byte of each chunk, and the last of the whole.
  void fill() {
    const CUstream stream = new_stream();
    for (std::size_t i = 0; i < kCount; ++i)
      EXPECT_EQ(cu->cuMemsetD8Async(range + i * kChunk, static_cast<unsigned char>(10 + i), kChunk,
                                    stream),
                CUDA_SUCCESS);
    EXPECT_EQ(cu->cuStreamSynchronize(stream), CUDA_SUCCESS);
  }
  /// Unmaps and frees all of it.
  void end() {
    EXPECT_EQ(cu->cuMemUnmap(range, kCount * kChunk), CUDA_SUCCESS);
    EXPECT_EQ(cu->cuMemAddressFree(range, kCount * kChunk), CUDA_SUCCESS);
    for (const auto handle : handles) EXPECT_EQ(cu->cuMemRelease(handle), CUDA_SUCCESS);
    range = 0;
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
  EXPECT_EQ(cu->cuMemUnmap(range + kChunk, kChunk), CUDA_SUCCESS);
  map(range + kChunk, handles[1]);
  allow(range + kChunk, kChunk, 0);
  const std::uint64_t again = buffer_id(range + kChunk);
  EXPECT_EQ(cu->cuMemUnmap(range + kChunk, kChunk), CUDA_SUCCESS);
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
  ASSERT_EQ(cu->cuMemExportToShareableHandle(&fd, retained, kPosixFd, 0), CUDA_SUCCESS);
  CUmemGenericAllocationHandle imported = 0;
  ASSERT_EQ(cu->cuMemImportFromShareableHandle(
                &imported, reinterpret_cast<void*>(static_cast<std::uintptr_t>(fd)), kPosixFd),
            CUDA_SUCCESS);
  EXPECT_EQ(::close(fd), 0);
  CUdeviceptr second = 0;
  ASSERT_EQ(cu->cuMemAddressReserve(&second, kChunk, 0, 0, 0), CUDA_SUCCESS);
  map(second, imported);
  allow(second, kChunk, 0);
  const CUstream stream = new_stream();
  std::byte* const host = new_pinned(4096);
  EXPECT_EQ(cu->cuMemsetD8Async(range + kChunk, 0x77, kChunk, stream), CUDA_SUCCESS);
  EXPECT_EQ(cu->cuMemcpyAsync(address_of(host), second, 4096, stream), CUDA_SUCCESS);
  EXPECT_EQ(cu->cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(host[0], std::byte{0x77});
  EXPECT_EQ(host[4095], std::byte{0x77});
  EXPECT_EQ(cu->cuMemUnmap(second, kChunk), CUDA_SUCCESS);
  EXPECT_EQ(cu->cuMemAddressFree(second, kChunk), CUDA_SUCCESS);
  EXPECT_EQ(cu->cuMemRelease(imported), CUDA_SUCCESS);
  EXPECT_EQ(cu->cuMemRelease(retained), CUDA_SUCCESS);
}

TEST_F(Chunks, WithoutAHandleTypeOneIsNotExported) {
  const CUmemGenericAllocationHandle none = create(0);
  int fd = -1;
  const CUresult r = cu->cuMemExportToShareableHandle(&fd, none, kPosixFd, 0);
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
    EXPECT_EQ(cu->cuMemUnmap(range + kChunk, kChunk), CUDA_SUCCESS);
    unmapped = true;
  });
  const bool waits = stays_false([&] { return unmapped.load(); });
  release(kGate);
  unmapper.join();
  map(range + kChunk, handles[1]);
  found(waits ? "waits" : "does not wait");
}

const std::vector<std::uint64_t> kPlaces = {0, kChunk - 1, kChunk, 2 * kChunk, 3 * kChunk - 1};
const std::vector<unsigned> kThere = {10, 10, 11, 12, 12};

TEST_F(Chunks, AnotherProcessMapsThemInARow) {
  fill();
  FarProcess far;
  far.map(exported(), kChunk);
  EXPECT_EQ(far.look(kPlaces), kThere);
}

TEST_F(Chunks, AMappingOutlivesItsExporter) {
  fill();
  FarProcess far;
  far.map(exported(), kChunk);
  end();
  EXPECT_EQ(far.look(kPlaces), kThere);
}

TEST_F(Chunks, ThoseOfAnInvisibleGpuAreMapped) {
  if (!with_gpus(2)) return;
  fill();
  FarProcess far({"CUDA_VISIBLE_DEVICES=1"});
  std::string seen = "as claimed";
  try {
    far.map(exported(), kChunk);
    EXPECT_EQ(far.look(kPlaces), kThere);
  } catch (const std::exception& error) {
    seen = std::string("refused: ") + error.what();
  }
  found(seen);
}

TEST_F(Chunks, AMappingBeyondItsChunkIsRefused) {
  CUdeviceptr place = 0;
  ASSERT_EQ(cu->cuMemAddressReserve(&place, 2 * kChunk, 0, 0, 0), CUDA_SUCCESS);
  const CUresult r = cu->cuMemMap(place, 2 * kChunk, 0, handles[0], 0);
  EXPECT_NE(r, CUDA_SUCCESS);
  EXPECT_EQ(cu->cuMemAddressFree(place, 2 * kChunk), CUDA_SUCCESS);
  found("refused with " + number(r));
}

TEST_F(Chunks, SharingBesideAHeldStream) {
  constexpr std::size_t kGate = 0;
  const CUstream held = new_stream();
  hold(held, kGate);
  std::atomic<int> step = 0;
  std::thread sharer([&] {
    const Current current(*cu, contexts[0]);
    const std::vector<base::Fd> fds = exported();
    step = 1;  // lent
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr place = 0;
    EXPECT_EQ(
        cu->cuMemImportFromShareableHandle(
            &handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(fds[0].get())), kPosixFd),
        CUDA_SUCCESS);
    EXPECT_EQ(cu->cuMemAddressReserve(&place, kChunk, 0, 0, 0), CUDA_SUCCESS);
    map(place, handle);
    allow(place, kChunk, 0);
    step = 2;  // mapped
    EXPECT_EQ(cu->cuMemUnmap(place, kChunk), CUDA_SUCCESS);
    EXPECT_EQ(cu->cuMemAddressFree(place, kChunk), CUDA_SUCCESS);
    EXPECT_EQ(cu->cuMemRelease(handle), CUDA_SUCCESS);
    step = 3;
  });
  const bool lent = eventually([&] { return step >= 1; }, kWhile);
  const bool mapped = eventually([&] { return step >= 2; }, kWhile);
  const bool unmapped = eventually([&] { return step >= 3; }, kWhile);
  release(kGate);
  sharer.join();
  EXPECT_TRUE(lent);
  found(std::string("exporting does not wait, mapping ") + (mapped ? "does not" : "does") +
        ", unmapping " + (unmapped ? "does not" : "does"));
}

}  // namespace chunks_test
}  // namespace linkspan::test
