// tests/unit/fake_cuda_test.cpp - that the simulated driver does what the tests of the library
// lean on. What a real GPU answers to the same calls is for tests/driver_facts.
//
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/options.hpp"
#include "cuda/driver.hpp"
#include "tests/support/fake_cuda/controls.hpp"
#include "tests/support/process.hpp"
#include "tests/support/take.hpp"

namespace linkspan::cuda {
namespace fake_cuda_test {

constexpr std::size_t kBytes = 3u << 20;

struct Piece {
  std::uint64_t to, from, bytes;
};

CUdeviceptr address_of(const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

/// Two GPUs with their contexts retained, the first one current, and a stream on each.
class FakeCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    const Result<const Driver*> got = Driver::get();
    fake = test::FakeCuda::find();
    if (!got.ok() || !fake) GTEST_SKIP() << "needs the simulated driver";
    driver = *got;
    std::array<char, 64> name{};
    ASSERT_EQ(driver->cuDeviceGetName(name.data(), 63, 0), CUDA_SUCCESS);
    if (std::strncmp(name.data(), "Simulated", 9) != 0)
      GTEST_SKIP() << "needs the simulated driver";
    int count = 0;
    ASSERT_EQ(driver->cuDeviceGetCount(&count), CUDA_SUCCESS);
    ASSERT_EQ(count, 2);
    fake.reset();
    for (const int ordinal : {1, 0}) {
      const auto i = static_cast<std::size_t>(ordinal);
      ASSERT_EQ(driver->cuDevicePrimaryCtxRetain(&context[i], ordinal), CUDA_SUCCESS);
      ASSERT_EQ(driver->cuCtxPushCurrent(context[i]), CUDA_SUCCESS);
      ASSERT_EQ(driver->cuStreamCreateWithPriority(&stream[i], CU_STREAM_NON_BLOCKING, 0),
                CUDA_SUCCESS);
    }
    void* memory = nullptr;
    ASSERT_EQ(driver->cuMemHostAlloc(&memory, kBytes, 3), CUDA_SUCCESS);
    pinned = static_cast<std::byte*>(memory);
  }
  void TearDown() override {
    if (pinned == nullptr) return;
    fake.reset();
    for (const int ordinal : {0, 1}) {
      CUcontext popped = nullptr;
      EXPECT_EQ(driver->cuCtxPopCurrent(&popped), CUDA_SUCCESS);
      EXPECT_EQ(driver->cuDevicePrimaryCtxRelease(ordinal), CUDA_SUCCESS);  // frees all of it
    }
  }

  CUdeviceptr allocate(std::size_t bytes = kBytes) const {
    CUdeviceptr address = 0;
    EXPECT_EQ(driver->cuMemAlloc(&address, bytes), CUDA_SUCCESS);
    return address;
  }
  /// Returns one of the aligned words at the end of the pinned memory.
  std::uint64_t* word(std::size_t i) const {
    return reinterpret_cast<std::uint64_t*>(pinned + kBytes) - 1 - i;
  }
  static std::uint64_t seen(std::uint64_t* at) { return std::atomic_ref(*at).load(); }
  CUresult write(std::size_t on, std::uint64_t* at, std::uint64_t value) const {
    return driver->cuStreamWriteValue64(stream[on], address_of(at), value, 0);
  }
  void synchronize(std::size_t on) const {
    EXPECT_EQ(driver->cuStreamSynchronize(stream[on]), CUDA_SUCCESS);
  }
  /// Returns the function on the first GPU.
  CUfunction copy_blocks() const {
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    EXPECT_EQ(driver->cuModuleLoadData(&module, "any image"), CUDA_SUCCESS);
    EXPECT_EQ(driver->cuModuleGetFunction(&function, module, "no such kernel"),
              CUDA_ERROR_NOT_FOUND);
    EXPECT_EQ(driver->cuModuleGetFunction(&function, module, "linkspan_copy_blocks"), CUDA_SUCCESS);
    return function;
  }
  /// Launches with the list and both abort words at the start of the pinned memory.
  CUresult launch(CUfunction function, unsigned count, std::size_t on = 0) const {
    auto list = address_of(pinned), abort = list + 1024, aborted = list + 1028;
    std::array<void*, 4> parameters{&list, &count, &abort, &aborted};
    return driver->cuLaunchKernel(function, 1, 1, 1, 512, 1, 1, 0, stream[on], parameters.data(),
                                  nullptr);
  }

  const Driver* driver = nullptr;
  test::FakeCuda fake;
  std::array<CUcontext, 2> context{};
  std::array<CUstream, 2> stream{};
  std::byte* pinned = nullptr;
};

TEST_F(FakeCuda, FaultsWhereACpuTouchesDeviceMemory) {
  const CUdeviceptr memory = allocate();
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  EXPECT_EQ(::write(pipe[1], reinterpret_cast<const void*>(memory), 1), -1);  // the kernel looks
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(::write(pipe[1], pinned, 1), 1);
  for (const int end : pipe) ::close(end);
}

TEST_F(FakeCuda, NewMemoryIsNotZero) {
  const CUdeviceptr memory = allocate();
  std::memset(pinned, 0, 64);
  ASSERT_EQ(driver->cuMemcpyAsync(address_of(pinned), memory, 64, stream[0]), CUDA_SUCCESS);
  synchronize(0);
  EXPECT_NE(pinned[0], std::byte{0});
  EXPECT_NE(pinned[63], std::byte{0});
}

TEST_F(FakeCuda, LooksUpAsTheRealOneDoes) {
  void* library = dlopen(base::environment("LINKSPAN_CUDA_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
  const auto look_up = reinterpret_cast<GetProcAddress>(dlsym(library, "cuGetProcAddress_v2"));
  ASSERT_NE(look_up, nullptr);
  const struct {
    const char* name;
    int version;
    CUresult result;
    CUdriverProcAddressQueryResult status;
    bool found;
  } cases[] = {
      {"cuMemAlloc", 3020, CUDA_SUCCESS, CU_GET_PROC_ADDRESS_SUCCESS, true},
      {"cuMemAlloc", 13000, CUDA_SUCCESS, CU_GET_PROC_ADDRESS_SUCCESS, true},
      {"cuMemAlloc", 13010, CUDA_ERROR_INVALID_VALUE, CU_GET_PROC_ADDRESS_SUCCESS, false},
      {"cuMemAlloc", 2000, CUDA_SUCCESS, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT, false},
      {"cuMemAlloc_v2", 13000, CUDA_SUCCESS, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, false},
  };
  for (const auto& c : cases) {
    void* function = nullptr;
    CUdriverProcAddressQueryResult status{};
    EXPECT_EQ(look_up(c.name, &function, c.version, 0, &status), c.result) << c.name << c.version;
    EXPECT_EQ(status, c.status) << c.name << c.version;
    EXPECT_EQ(function != nullptr, c.found) << c.name << c.version;
  }
}

TEST_F(FakeCuda, AThreadWithoutAContextIsRefused) {
  std::thread([this] {
    CUdeviceptr address = 0;
    CUstream made = nullptr;
    CUevent event = nullptr;
    void* memory = nullptr;
    EXPECT_EQ(driver->cuMemAlloc(&address, 1), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(driver->cuMemHostAlloc(&memory, 1, 3), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(driver->cuStreamCreateWithPriority(&made, 1, 0), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(driver->cuEventCreate(&event, 2), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(driver->cuStreamQuery(nullptr), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(driver->cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(driver->cuStreamQuery(stream[0]), CUDA_SUCCESS);  // a stream knows its own
  }).join();
}

TEST_F(FakeCuda, TheCaptureModeIsTheThreads) {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  ASSERT_EQ(driver->cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  const CUstreamCaptureMode before = mode;
  std::thread([this] {
    CUstreamCaptureMode other = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    EXPECT_EQ(driver->cuThreadExchangeStreamCaptureMode(&other), CUDA_SUCCESS);
    EXPECT_EQ(other, CU_STREAM_CAPTURE_MODE_GLOBAL);
  }).join();
  ASSERT_EQ(driver->cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(before, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

TEST_F(FakeCuda, AHeldStreamKeepsItsOrder) {
  const CUdeviceptr memory = allocate();
  std::memset(pinned, 7, 100);
  test::FakeCudaHold hold(fake, 0);
  EXPECT_EQ(driver->cuMemcpyAsync(memory + 5, address_of(pinned), 100, stream[0]), CUDA_SUCCESS);
  EXPECT_EQ(driver->cuMemcpyAsync(address_of(pinned + 1000), memory + 5, 100, stream[0]),
            CUDA_SUCCESS);
  EXPECT_EQ(write(0, word(0), 42), CUDA_SUCCESS);
  EXPECT_EQ(driver->cuStreamQuery(stream[0]), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(write(1, word(1), 1), CUDA_SUCCESS);
  synchronize(1);  // the other GPU goes on
  EXPECT_EQ(seen(word(0)), 0u);
  hold.release();
  synchronize(0);
  EXPECT_EQ(driver->cuStreamQuery(stream[0]), CUDA_SUCCESS);
  EXPECT_EQ(seen(word(0)), 42u);
  EXPECT_EQ(pinned[1099], std::byte{7});
}

TEST_F(FakeCuda, AFullStreamBlocksItsCallerAndNoOther) {
  test::FakeCudaHold hold(fake, 0);
  for (std::uint64_t i = 1; i <= 1021; ++i) ASSERT_EQ(write(0, word(0), i), CUDA_SUCCESS);
  std::atomic<bool> returned = false;
  std::thread blocked([&] {
    EXPECT_EQ(write(0, word(0), 1022), CUDA_SUCCESS);
    returned = true;
  });
  while (fake.call_count("cuStreamWriteValue64") < 1022) std::this_thread::yield();
  EXPECT_EQ(write(1, word(1), 1), CUDA_SUCCESS);
  synchronize(1);
  EXPECT_FALSE(returned);
  hold.release();
  blocked.join();
  synchronize(0);
  EXPECT_EQ(seen(word(0)), 1022u);
}

TEST_F(FakeCuda, AStreamWaitsForAWordThatTheHostWrites) {
  const auto wait = [&](std::uint64_t* at, std::uint64_t value, unsigned flags = 0) {
    return driver->cuStreamWaitValue64(stream[0], address_of(at), value, flags);
  };
  std::uint64_t plain = 0;
  EXPECT_EQ(wait(&plain, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(wait(word(0), 1, 8), CUDA_ERROR_INVALID_VALUE);
  std::atomic_ref(*word(0)).store(~std::uint64_t{0});  // -1
  EXPECT_EQ(wait(word(0), 1), CUDA_SUCCESS);
  EXPECT_EQ(write(0, word(1), 5), CUDA_SUCCESS);
  EXPECT_EQ(write(1, word(2), 6), CUDA_SUCCESS);
  synchronize(1);  // the other stream goes on
  EXPECT_EQ(driver->cuStreamQuery(stream[0]), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(seen(word(1)), 0u);
  std::atomic_ref(*word(0)).store(2);
  synchronize(0);
  EXPECT_EQ(seen(word(1)), 5u);
  EXPECT_EQ(wait(word(0), 2), CUDA_SUCCESS);  // was there before
  synchronize(0);
}

TEST_F(FakeCuda, AStreamThatWaitsForAWordEndsWithItsDeviceAndOutlivesItsHandle) {
  EXPECT_EQ(driver->cuStreamWaitValue64(stream[1], address_of(word(0)), 1, 0), CUDA_SUCCESS);
  EXPECT_EQ(write(1, word(1), 5), CUDA_SUCCESS);
  EXPECT_EQ(driver->cuStreamDestroy(stream[1]), CUDA_SUCCESS);  // does not end what it waits for
  EXPECT_EQ(driver->cuStreamWaitValue64(stream[0], address_of(word(2)), 1, 0), CUDA_SUCCESS);
  EXPECT_EQ(write(0, word(1), 6), CUDA_SUCCESS);
  test::FakeCudaHold hold(fake, 0);  // a stream that waits does not run: this returns
  fake.lose(0);
  EXPECT_EQ(driver->cuStreamQuery(stream[0]), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(seen(word(1)), 0u);
  std::atomic_ref(*word(0)).store(1);
  ASSERT_EQ(driver->cuCtxPushCurrent(context[1]), CUDA_SUCCESS);
  EXPECT_EQ(driver->cuCtxSynchronize(), CUDA_SUCCESS);
  CUcontext popped = nullptr;
  ASSERT_EQ(driver->cuCtxPopCurrent(&popped), CUDA_SUCCESS);
  EXPECT_EQ(seen(word(1)), 5u);
}

TEST_F(FakeCuda, AnEventOrdersStreamsOfTwoGpus) {
  CUevent event = nullptr;
  ASSERT_EQ(driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  EXPECT_EQ(driver->cuEventQuery(event), CUDA_SUCCESS);  // never recorded
  test::FakeCudaHold hold(fake, 0);
  EXPECT_EQ(driver->cuEventRecord(event, stream[0]), CUDA_SUCCESS);
  EXPECT_EQ(driver->cuEventRecord(event, stream[1]), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(driver->cuStreamWaitEvent(stream[1], event, 0), CUDA_SUCCESS);
  EXPECT_EQ(write(1, word(0), 1), CUDA_SUCCESS);
  EXPECT_EQ(driver->cuEventQuery(event), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(driver->cuStreamQuery(stream[1]), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(seen(word(0)), 0u);
  EXPECT_EQ(driver->cuEventDestroy(event), CUDA_SUCCESS);  // waiting streams keep their event
  hold.release();
  synchronize(1);
  EXPECT_EQ(seen(word(0)), 1u);
}

TEST_F(FakeCuda, ADestroyedStreamFinishesItsWork) {
  test::FakeCudaHold hold(fake, 0);
  EXPECT_EQ(write(0, word(0), 5), CUDA_SUCCESS);
  EXPECT_EQ(driver->cuStreamDestroy(stream[0]), CUDA_SUCCESS);
  EXPECT_EQ(driver->cuStreamQuery(stream[0]), CUDA_ERROR_INVALID_HANDLE);
  hold.release();
  EXPECT_EQ(driver->cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(seen(word(0)), 5u);
}

TEST_F(FakeCuda, PageableMemoryIsReadAndWrittenBeforeTheCallReturns) {
  const CUdeviceptr memory = allocate();
  std::vector<std::byte> plain(1000, std::byte{9}), back(1000);
  {
    const test::FakeCudaHold hold(fake, 0);
    EXPECT_EQ(driver->cuMemcpyAsync(memory, address_of(plain.data()), 1000, stream[0]),
              CUDA_SUCCESS);
    plain.assign(1000, std::byte{1});
  }
  EXPECT_EQ(driver->cuMemcpyAsync(address_of(back.data()), memory, 1000, stream[0]), CUDA_SUCCESS);
  EXPECT_EQ(back, std::vector<std::byte>(1000, std::byte{9}));
}

TEST_F(FakeCuda, RefusesWhatLiesOutsideAnAllocation) {
  const CUdeviceptr memory = allocate(5000);
  const auto copy = [&](CUdeviceptr to, std::size_t bytes) {
    return driver->cuMemcpyAsync(to, address_of(pinned), bytes, stream[0]);
  };
  EXPECT_EQ(copy(memory + 4000, 1000), CUDA_SUCCESS);
  EXPECT_EQ(copy(memory + 4000, 1001), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(copy(memory + 5000, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(copy(memory, ~std::size_t{0}), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(driver->cuMemsetD8Async(memory + 1, 0, 5000, stream[0]), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(driver->cuStreamWriteValue64(stream[0], memory + 4, 1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(driver->cuMemFree(memory + 4096), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(driver->cuMemFree(memory), CUDA_SUCCESS);
  EXPECT_EQ(copy(memory, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(driver->cuMemFree(memory), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCuda, AnAddressIsUsedAgainAndItsIdIsNot) {
  unsigned long long before = 0, after = 0;
  const CUdeviceptr first = allocate();
  EXPECT_EQ(driver->cuPointerGetAttribute(&before, CU_POINTER_ATTRIBUTE_BUFFER_ID, first),
            CUDA_SUCCESS);
  EXPECT_EQ(driver->cuMemFree(first), CUDA_SUCCESS);
  EXPECT_EQ(driver->cuPointerGetAttribute(&after, CU_POINTER_ATTRIBUTE_BUFFER_ID, first),
            CUDA_ERROR_INVALID_VALUE);
  const CUdeviceptr second = allocate();
  EXPECT_EQ(second, first);
  EXPECT_EQ(driver->cuPointerGetAttribute(&after, CU_POINTER_ATTRIBUTE_BUFFER_ID, second),
            CUDA_SUCCESS);
  EXPECT_NE(after, before);
}

TEST_F(FakeCuda, PointersTellWhatTheyAre) {
  std::vector<std::byte> plain(20000);
  ASSERT_EQ(driver->cuMemHostRegister(plain.data() + 1, 9000, 3), CUDA_SUCCESS);
  EXPECT_EQ(driver->cuMemHostRegister(plain.data() + 9000, 9000, 3),
            CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  CUdeviceptr managed = 0;
  ASSERT_EQ(driver->cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  const struct {
    CUdeviceptr address;
    unsigned type, managed, legacy_ipc;
  } cases[] = {{allocate() + 77, CU_MEMORYTYPE_DEVICE, 0, 1},
               {address_of(pinned + 77), CU_MEMORYTYPE_HOST, 0, 0},
               {address_of(plain.data() + 77), CU_MEMORYTYPE_HOST, 0, 0},
               {managed + 77, CU_MEMORYTYPE_DEVICE, 1, 0},
               {address_of(plain.data() + 9001), 0, 0, 0}};
  for (const auto& c : cases) {
    unsigned type = 9, is_managed = 9, legacy_ipc = 9;
    std::array attributes{CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                          CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE};
    std::array<void*, 3> values{&type, &is_managed, &legacy_ipc};
    EXPECT_EQ(driver->cuPointerGetAttributes(3, attributes.data(), values.data(), c.address),
              CUDA_SUCCESS);
    EXPECT_EQ(type, c.type);
    EXPECT_EQ(is_managed, c.managed);
    EXPECT_EQ(legacy_ipc, c.legacy_ipc);
    CUdeviceptr base = 0;
    EXPECT_EQ(driver->cuMemGetAddressRange(&base, nullptr, c.address),
              c.type != 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND);
  }
  EXPECT_EQ(driver->cuMemHostUnregister(plain.data() + 1), CUDA_SUCCESS);
  EXPECT_EQ(driver->cuMemHostUnregister(plain.data() + 1), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

TEST_F(FakeCuda, TheKernelCopiesItsListAndStopsWhenTold) {
  const CUdeviceptr memory = allocate();
  for (std::size_t i = 0; i < 5000; ++i) pinned[10000 + i] = static_cast<std::byte>(i * 31 >> 2);
  const CUdeviceptr from = address_of(pinned + 10000), to = address_of(pinned + 20000);
  const std::array<Piece, 4> list{{{memory + 3, from, 5000},
                                   {memory + 9000, from, 0},
                                   {to, memory + 3, 2000},
                                   {to + 2001, memory + 2003, 3000}}};
  std::memcpy(pinned, list.data(), sizeof list);
  const CUfunction function = copy_blocks();
  EXPECT_EQ(launch(function, 4, 1), CUDA_ERROR_INVALID_HANDLE);  // another GPU's stream
  EXPECT_EQ(launch(function, 4), CUDA_SUCCESS);
  synchronize(0);
  EXPECT_EQ(std::memcmp(pinned + 20000, pinned + 10000, 2000), 0);
  EXPECT_EQ(pinned[22000], std::byte{0});
  EXPECT_EQ(std::memcmp(pinned + 22001, pinned + 12000, 3000), 0);

  unsigned& abort = *reinterpret_cast<unsigned*>(pinned + 1024);
  unsigned& aborted = *reinterpret_cast<unsigned*>(pinned + 1028);
  EXPECT_EQ(std::atomic_ref(aborted).load(), 0u);
  std::memset(pinned + 20000, 0, 2000);
  test::FakeCudaHold hold(fake, 0);
  EXPECT_EQ(launch(function, 4), CUDA_SUCCESS);
  std::atomic_ref(abort).store(1);
  hold.release();
  synchronize(0);
  EXPECT_EQ(std::atomic_ref(aborted).load(), 1u);
  EXPECT_EQ(pinned[20001], std::byte{0});
}

TEST_F(FakeCuda, AKernelReachesAPeersMemoryOnlyWhenEnabled) {
  CUcontext popped = nullptr;
  ASSERT_EQ(driver->cuCtxPushCurrent(context[1]), CUDA_SUCCESS);
  const CUdeviceptr theirs = allocate();
  ASSERT_EQ(driver->cuCtxPopCurrent(&popped), CUDA_SUCCESS);
  const Piece piece{allocate(), theirs, 100};
  std::memcpy(pinned, &piece, sizeof piece);
  const CUfunction function = copy_blocks();
  EXPECT_EQ(driver->cuMemcpyAsync(piece.to, theirs, 100, stream[0]), CUDA_SUCCESS);
  synchronize(0);
  const CUresult first =
      driver->cuCtxEnablePeerAccess(context[1], 0);  // other tests share contexts
  EXPECT_TRUE(first == CUDA_SUCCESS || first == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) << first;
  EXPECT_EQ(driver->cuCtxEnablePeerAccess(context[1], 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  EXPECT_EQ(launch(function, 1), CUDA_SUCCESS);
  synchronize(0);
  const Piece wild{piece.to, piece.to + kBytes, 1};
  std::memcpy(pinned, &wild, sizeof wild);
  EXPECT_EQ(launch(function, 1), CUDA_SUCCESS);
  EXPECT_EQ(driver->cuStreamSynchronize(stream[0]), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(FakeCuda, ALostDeviceDropsItsWorkAndAnswers700) {
  CUevent event = nullptr;
  ASSERT_EQ(driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  {
    const test::FakeCudaHold hold(fake, 0);
    EXPECT_EQ(write(0, word(0), 1), CUDA_SUCCESS);
    EXPECT_EQ(driver->cuEventRecord(event, stream[0]), CUDA_SUCCESS);
    fake.lose(0);
  }
  EXPECT_EQ(seen(word(0)), 0u);
  EXPECT_EQ(driver->cuStreamQuery(stream[0]), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(driver->cuEventQuery(event), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(write(0, word(0), 1), CUDA_ERROR_ILLEGAL_ADDRESS);
  CUdeviceptr memory = 0;
  EXPECT_EQ(driver->cuMemAlloc(&memory, 1), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(write(1, word(1), 1), CUDA_SUCCESS);
  synchronize(1);
  fake.reset();
  EXPECT_EQ(write(0, word(0), 2), CUDA_SUCCESS);
  synchronize(0);
  EXPECT_EQ(seen(word(0)), 2u);
}

TEST_F(FakeCuda, CountsCalls) {
  fake.reset();
  synchronize(0);
  synchronize(0);
  EXPECT_EQ(fake.call_count("cuStreamSynchronize"), 2u);
  EXPECT_EQ(fake.call_count("cuMemAlloc"), 0u);
  EXPECT_EQ(fake.call_count("no such entry"), 0u);
}

// ---- the second process ---------------------------------------------------------------------

using test::Answer;
using test::Child;
using test::Json;

/// Two allocations on the first GPU that it sees, and a stream.
struct Borrowed {
  explicit Borrowed(const Driver& table) : driver(table) {
    CUcontext context = nullptr;
    check(driver.cuDevicePrimaryCtxRetain(&context, 0));
    check(driver.cuCtxPushCurrent(context));
    check(driver.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
    for (CUdeviceptr& each : memory) {
      check(driver.cuMemAlloc(&each, kBytes));
      check(driver.cuMemsetD8Async(each, 0x5a, kBytes, stream));
    }
    check(driver.cuStreamSynchronize(stream));
  }
  static void check(CUresult result) {
    if (result != CUDA_SUCCESS) throw std::runtime_error("driver: " + std::to_string(result));
  }

  Json handle(std::size_t i) const {
    std::array<unsigned char, sizeof(CUipcMemHandle)> bytes{};
    check(driver.cuIpcGetMemHandle(reinterpret_cast<CUipcMemHandle*>(bytes.data()),
                                   memory[i] + 5000));  // any address of it
    return bytes;
  }
  Json uuid() const {
    CUuuid found{};
    check(driver.cuDeviceGetUuid(&found, 0));
    return std::string(found.bytes, sizeof found.bytes);
  }
  /// Does not return.
  Json end_while_busy() const {
    const test::FakeCuda fake = test::FakeCuda::find();
    fake.hold(0, 1);
    for (int i = 0; i < 100; ++i) check(driver.cuMemcpyAsync(memory[0], memory[1], kBytes, stream));
    check(driver.cuStreamWaitValue64(stream, memory[0], 0x7fffffffffffffff, 0));  // never
    fake.hold(0, 0);
    std::exit(0);
  }
  /// Returns how a forked child ended.
  Json fork_and_wait() const {
    const pid_t child = fork();
    if (child == 0) {
      int count = 0;
      std::exit(driver.cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
    }
    int status = -1;
    return waitpid(child, &status, 0) == child ? status : -1;
  }

  const Driver& driver;
  CUstream stream = nullptr;
  std::array<CUdeviceptr, 2> memory{};
};

void serve_borrowed(test::Line& line) {
  const Result<const Driver*> driver = Driver::get();
  if (!driver.ok()) return;
  const Borrowed borrowed(**driver);
  line.serve(
      [&](const Json& call, std::vector<base::Fd>) -> Result<Answer> {
        const auto what = call.at("do").get<std::string>();
        if (what == "handle") return Answer{borrowed.handle(call.at("of")), {}};
        if (what == "free") return Answer{borrowed.driver.cuMemFree(borrowed.memory[1]), {}};
        if (what == "uuid") return Answer{borrowed.uuid(), {}};
        if (what == "end") return Answer{borrowed.end_while_busy(), {}};
        return Answer{borrowed.fork_and_wait(), {}};
      },
      [] { return false; });
}
const bool kHelper = test::add_helper("fake_cuda", serve_borrowed);

Json ask(Child& child, const Json& request) { return test::take(child.line().call(request)).value; }

TEST_F(FakeCuda, AHandleReachesTheMemoryAndOutlivesItsProcess) {
  const auto child = test::take(Child::spawn("fake_cuda"));
  std::array<CUipcMemHandle, 2> handles{};
  for (std::size_t i = 0; i < 2; ++i) {
    const auto bytes =
        ask(*child, {{"do", "handle"}, {"of", i}}).get<std::array<unsigned char, 64>>();
    std::memcpy(&handles[i], bytes.data(), sizeof handles[i]);
  }
  CUdeviceptr first = 0, again = 0, other = 0;
  const auto open = [&](std::size_t i, CUdeviceptr* base) {
    return driver->cuIpcOpenMemHandle(base, handles[i], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  };
  ASSERT_EQ(open(0, &first), CUDA_SUCCESS);
  ASSERT_EQ(open(0, &again), CUDA_SUCCESS);
  EXPECT_EQ(again, first);
  ASSERT_EQ(open(1, &other), CUDA_SUCCESS);
  EXPECT_EQ(driver->cuIpcCloseMemHandle(other), CUDA_SUCCESS);
  std::size_t bytes = 0;
  EXPECT_EQ(driver->cuMemGetAddressRange(nullptr, &bytes, first + 9), CUDA_SUCCESS);
  EXPECT_EQ(bytes, kBytes);

  EXPECT_EQ(ask(*child, {{"do", "free"}}), CUDA_SUCCESS);
  EXPECT_EQ(open(1, &other), CUDA_ERROR_INVALID_VALUE);
  child->kill();
  EXPECT_EQ(open(0, &other), CUDA_ERROR_INVALID_VALUE);

  EXPECT_EQ(driver->cuMemcpyAsync(address_of(pinned), first, kBytes, stream[0]), CUDA_SUCCESS);
  synchronize(0);
  EXPECT_EQ(pinned[0], std::byte{0x5a});
  EXPECT_EQ(pinned[kBytes - 1], std::byte{0x5a});
  EXPECT_EQ(driver->cuMemFree(first), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(driver->cuIpcCloseMemHandle(first), CUDA_SUCCESS);
  EXPECT_EQ(driver->cuMemsetD8Async(first, 1, 1, stream[0]), CUDA_SUCCESS);  // opened twice
  synchronize(0);
  EXPECT_EQ(driver->cuIpcCloseMemHandle(first), CUDA_SUCCESS);
  EXPECT_EQ(driver->cuIpcCloseMemHandle(first), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCuda, AProcessDoesNotOpenItsOwnHandle) {
  CUipcMemHandle handle{};
  CUdeviceptr base = 0;
  ASSERT_EQ(driver->cuIpcGetMemHandle(&handle, allocate() + 70000), CUDA_SUCCESS);
  EXPECT_EQ(driver->cuIpcOpenMemHandle(&base, handle, 1), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(FakeCuda, AHiddenGpuKeepsItsUuid) {
  CUuuid ours{};
  ASSERT_EQ(driver->cuDeviceGetUuid(&ours, 1), CUDA_SUCCESS);
  const auto child = test::take(Child::spawn("fake_cuda", {"CUDA_VISIBLE_DEVICES=1"}));
  EXPECT_EQ(ask(*child, {{"do", "uuid"}}).get<std::string>(),
            std::string(ours.bytes, sizeof ours.bytes));
}

TEST_F(FakeCuda, AProcessEndsWhileItsStreamsAreBusy) {
  const auto child = test::take(Child::spawn("fake_cuda"));
  EXPECT_EQ(child->line().call({{"do", "end"}}).status().code(), Code::disconnected);
  siginfo_t end{};  // left to be waited for by Child
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child->pid()), &end, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(end.si_code, CLD_EXITED);
  EXPECT_EQ(end.si_status, 0);
}

TEST_F(FakeCuda, AForkedChildFindsNothingAndEnds) {
  const auto child = test::take(Child::spawn("fake_cuda"));
  EXPECT_EQ(ask(*child, {{"do", "fork"}}), 0);
}

}  // namespace fake_cuda_test
}  // namespace linkspan::cuda
