// Tests which set-up calls wait for a blocked stream. The submissions of other threads wait with
// each such call.
#include <functional>

#include "tests/driver_facts/far_process.hpp"

namespace linkspan::test {
namespace held_test {

class Held : public Fact {
 protected:
  enum class Waits { nobody, all };

  /// Runs `call` in a thread of its own beside a held stream, and then lets all go on.
  void beside(const std::function<CUresult()>& call, Waits who) {
    constexpr std::size_t kGate = 0, kWord = 1;
    const CUstream held = new_stream(), other = new_stream();
    const CUdeviceptr memory = new_memory();
    hold(held, kGate);
    std::atomic<bool> called = false, submitted = false;
    std::thread caller([&] {
      const Current current(*cu, contexts[0]);
      EXPECT_EQ(call(), CUDA_SUCCESS);
      called = true;
    });
    const bool call_waits = stays_false([&] { return called.load(); });
    std::thread neighbour([&] {
      const Current current(*cu, contexts[0]);
      EXPECT_EQ(cu->cuMemcpyAsync(memory, memory + 4096, 4096, other), CUDA_SUCCESS);
      EXPECT_EQ(write(other, kWord), CUDA_SUCCESS);
      submitted = true;
    });
    const bool neighbours_wait = stays_false([&] { return submitted.load(); });
    release(kGate);
    caller.join();
    neighbour.join();
    EXPECT_TRUE(comes(kWord));
    EXPECT_TRUE(idle(held));
    EXPECT_EQ(call_waits, who == Waits::all);
    EXPECT_EQ(neighbours_wait, who == Waits::all);
  }
};

TEST_F(Held, ClosingAHandle) {
  FarProcess far;
  CUdeviceptr open = 0;
  ASSERT_EQ(
      cu->cuIpcOpenMemHandle(&open, far.lend(0, 4u << 20, 0), CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
      CUDA_SUCCESS);
  beside([&] { return cu->cuIpcCloseMemHandle(open); }, Waits::all);
}

TEST_F(Held, OpeningAHandle) {
  FarProcess far;
  const CUipcMemHandle handle = far.lend(0, 4u << 20, 0);
  CUdeviceptr open = 0;
  beside([&] { return cu->cuIpcOpenMemHandle(&open, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS); },
         Waits::nobody);
  EXPECT_EQ(cu->cuIpcCloseMemHandle(open), CUDA_SUCCESS);
}

TEST_F(Held, RegisteringHostMemory) {
  std::vector<std::byte> plain(1u << 20);
  beside(
      [&] {
        return cu->cuMemHostRegister(plain.data(), plain.size(), CU_MEMHOSTREGISTER_PORTABLE);
      },
      Waits::nobody);
  EXPECT_EQ(cu->cuMemHostUnregister(plain.data()), CUDA_SUCCESS);
}

TEST_F(Held, UnregisteringHostMemory) {
  std::vector<std::byte> plain(1u << 20);
  ASSERT_EQ(cu->cuMemHostRegister(plain.data(), plain.size(), CU_MEMHOSTREGISTER_PORTABLE),
            CUDA_SUCCESS);
  beside([&] { return cu->cuMemHostUnregister(plain.data()); }, Waits::all);
}

TEST_F(Held, AllocatingPinnedMemory) {
  void* memory = nullptr;
  beside([&] { return cu->cuMemHostAlloc(&memory, kBytes, CU_MEMHOSTALLOC_PORTABLE); },
         Waits::nobody);
  EXPECT_EQ(cu->cuMemFreeHost(memory), CUDA_SUCCESS);
}

TEST_F(Held, FreeingPinnedMemory) {
  void* memory = nullptr;
  ASSERT_EQ(cu->cuMemHostAlloc(&memory, kBytes, CU_MEMHOSTALLOC_PORTABLE), CUDA_SUCCESS);
  beside([&] { return cu->cuMemFreeHost(memory); }, Waits::all);
}

TEST_F(Held, AllocatingMemory) {
  CUdeviceptr memory = 0;
  beside([&] { return cu->cuMemAlloc(&memory, kBytes); }, Waits::nobody);
  EXPECT_EQ(cu->cuMemFree(memory), CUDA_SUCCESS);
}

TEST_F(Held, FreeingMemory) {
  CUdeviceptr memory = 0;
  ASSERT_EQ(cu->cuMemAlloc(&memory, kBytes), CUDA_SUCCESS);
  beside([&] { return cu->cuMemFree(memory); }, Waits::all);
}

TEST_F(Held, MakingAndEndingAStream) {
  beside(
      [&] {
        CUstream stream = nullptr;
        const CUresult r = cu->cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0);
        return r != CUDA_SUCCESS ? r : cu->cuStreamDestroy(stream);
      },
      Waits::nobody);
}

/// About one call in 40 waits, because the driver makes room for more streams.
TEST_F(Held, MakingManyStreams) {
  constexpr std::size_t kGate = 0;
  hold(new_stream(), kGate);
  std::vector<CUstream> made(100);
  std::atomic<bool> all_made = false;
  std::thread maker([&] {
    const Current current(*cu, contexts[0]);
    for (CUstream& each : made)
      EXPECT_EQ(cu->cuStreamCreateWithPriority(&each, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
    all_made = true;
  });
  EXPECT_TRUE(stays_false([&] { return all_made.load(); }));
  release(kGate);
  maker.join();
  for (CUstream each : made) EXPECT_EQ(cu->cuStreamDestroy(each), CUDA_SUCCESS);
}

}  // namespace held_test
}  // namespace linkspan::test
