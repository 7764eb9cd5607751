// Tests when code is loaded to the GPU, and which code a GPU accepts.
#include <atomic>
#include <thread>

#include "cuda/kernels.hpp"
#include "tests/driver_facts/far_process.hpp"

namespace linkspan::test {
namespace loading_test {

/// `spin` ends when *word is 1 or after `limit` ns; `mark_...` set *word to 1.
constexpr char kModule[] = R"(
.version 7.0
.target sm_80
.address_size 64
.visible .entry spin(.param .u64 word, .param .u64 limit)
{
  .reg .pred %p;
  .reg .u32 %v;
  .reg .u64 %a, %begin, %now, %spent, %most;
  ld.param.u64 %a, [word];
  ld.param.u64 %most, [limit];
  mov.u64 %begin, %globaltimer;
again:
  ld.volatile.global.u32 %v, [%a];
  setp.ne.u32 %p, %v, 0;
  @%p bra done;
  mov.u64 %now, %globaltimer;
  sub.u64 %spent, %now, %begin;
  setp.lt.u64 %p, %spent, %most;
  @%p bra again;
done:
  ret;
}
.visible .entry mark_loaded(.param .u64 word)
{
  .reg .u64 %a;
  ld.param.u64 %a, [word];
  st.volatile.global.u32 [%a], 1;
  ret;
}
)";

class Loading : public Fact {
 protected:
  static constexpr std::chrono::nanoseconds kSpin = 1s;
  /// A call that takes less than this has not waited for the spinner.
  static constexpr std::chrono::milliseconds kSoon{300};
  static constexpr std::size_t kStop = 0, kWarm = 1, kMarked = 2;

  void SetUp() override {
    Fact::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    ASSERT_EQ(cu->cuModuleLoadData(&module, kModule), CUDA_SUCCESS);
    for (auto [name, function] : {std::pair{"spin", &spin}, {"mark_loaded", &mark_loaded}})
      ASSERT_EQ(cu->cuModuleGetFunction(function, module, name), CUDA_SUCCESS);
    int threads = 0;
    ASSERT_EQ(
        cu->cuFuncGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, mark_loaded),
        CUDA_SUCCESS);
    busy = new_stream();
    free_stream = new_stream();
    word(kWarm) = 1;
    start_spin(kWarm);  // loads it, and ends at once
    ASSERT_TRUE(idle(busy));
  }
  void TearDown() override {
    if (module != nullptr) {
      release(kStop);
      EXPECT_TRUE(idle(busy));
      EXPECT_EQ(cu->cuModuleUnload(module), CUDA_SUCCESS);
    }
    Fact::TearDown();
  }

  void start_spin(std::size_t until) {
    CUdeviceptr stop = word_address(until);
    std::uint64_t limit = kSpin.count();
    std::array<void*, 2> parameters{&stop, &limit};
    ASSERT_EQ(cu->cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, busy, parameters.data(), nullptr),
              CUDA_SUCCESS);
  }
  CUresult mark(CUfunction by, std::size_t which) {
    CUdeviceptr at = word_address(which);
    std::array<void*, 1> parameters{&at};
    return cu->cuLaunchKernel(by, 1, 1, 1, 1, 1, 1, 0, free_stream, parameters.data(), nullptr);
  }
  /// Measures `work` beside a spinner, which still spins at its end or has ended.
  template <class Work>
  std::chrono::milliseconds time(Work work) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() -
                                                                 begin);
  }
  int compute_capability() const {
    int major = 0, minor = 0;
    EXPECT_EQ(cu->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0),
              CUDA_SUCCESS);
    EXPECT_EQ(cu->cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0),
              CUDA_SUCCESS);
    return 10 * major + minor;
  }
  bool spins() const { return cu->cuStreamQuery(busy) == CUDA_ERROR_NOT_READY; }

  CUmodule module = nullptr;
  CUfunction spin = nullptr, mark_loaded = nullptr;
  CUstream busy = nullptr, free_stream = nullptr;
};

/// The function is of a cubin and was never touched or launched. A function that the runtime loads
/// lazily does wait.
TEST_F(Loading, AFunctionOfAModuleStartsBesideTheSpinner) {
  const linkspan_image* cubin = choose_image(embedded_images(), compute_capability());
  if (cubin == nullptr || cubin->sm == 0) GTEST_SKIP() << "needs a build with kernels";
  CUmodule fresh = nullptr;
  CUfunction copy_blocks = nullptr;
  ASSERT_EQ(cu->cuModuleLoadData(&fresh, cubin->begin), CUDA_SUCCESS);
  ASSERT_EQ(cu->cuModuleGetFunction(&copy_blocks, fresh, "linkspan_copy_blocks"), CUDA_SUCCESS);
  CUdeviceptr list = word_address(4), abort = word_address(5), aborted = word_address(6);
  unsigned none = 0;
  std::array<void*, 4> parameters{&list, &none, &abort, &aborted};
  start_spin(kStop);
  const auto soon = time([&] {
    EXPECT_EQ(cu->cuLaunchKernel(copy_blocks, 1, 1, 1, 512, 1, 1, 0, free_stream, parameters.data(),
                                 nullptr),
              CUDA_SUCCESS);
    EXPECT_EQ(write(free_stream, kMarked), CUDA_SUCCESS);
    EXPECT_TRUE(comes(kMarked));
  });
  EXPECT_TRUE(spins());
  found(std::to_string(soon.count()) + " ms beside a spinner of 1000 ms");
  EXPECT_LT(soon, kSoon);
  release(kStop);
  EXPECT_TRUE(idle(busy));
  EXPECT_EQ(cu->cuModuleUnload(fresh), CUDA_SUCCESS);
}

TEST_F(Loading, AModuleWaitsForAHeldStream) {
  const linkspan_image* cubin = choose_image(embedded_images(), compute_capability());
  if (cubin == nullptr || cubin->sm == 0) GTEST_SKIP() << "needs a build with kernels";
  hold(busy, kStop);
  std::atomic<bool> loaded{false};
  CUmodule late = nullptr;
  CUresult r = CUDA_ERROR_UNKNOWN;
  std::jthread loader([&] {
    EXPECT_EQ(cu->cuCtxPushCurrent(contexts[0]), CUDA_SUCCESS);
    r = cu->cuModuleLoadData(&late, cubin->begin);
    CUfunction function = nullptr;
    int threads = 0;
    if (r == CUDA_SUCCESS) r = cu->cuModuleGetFunction(&function, late, "linkspan_copy_blocks");
    if (r == CUDA_SUCCESS)
      r = cu->cuFuncGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function);
    loaded = true;
  });
  EXPECT_FALSE(eventually([&] { return loaded.load(); }, kSoon));
  release(kStop);
  loader.join();
  EXPECT_EQ(r, CUDA_SUCCESS);
  EXPECT_EQ(cu->cuModuleUnload(late), CUDA_SUCCESS);
}

TEST_F(Loading, ALoadedFunctionStartsBesideTheSpinner) {
  start_spin(kStop);
  const auto soon = time([&] {
    EXPECT_EQ(mark(mark_loaded, kMarked), CUDA_SUCCESS);  // never launched before
    EXPECT_TRUE(comes(kMarked));
  });
  EXPECT_TRUE(spins());
  found(std::to_string(soon.count()) + " ms beside a spinner of 1000 ms");
  EXPECT_LT(soon, kSoon);
}

TEST_F(Loading, SetUpCallsDoNotWaitForTheSpinner) {
  FarProcess far;
  const CUipcMemHandle handle = far.lend(0, 4u << 20, 0);
  std::vector<std::byte> plain(1u << 20);
  start_spin(kStop);
  CUdeviceptr imported = 0;
  const auto soon = time([&] {
    EXPECT_EQ(cu->cuIpcOpenMemHandle(&imported, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
              CUDA_SUCCESS);
    new_memory();
    EXPECT_EQ(cu->cuMemHostRegister(plain.data(), plain.size(), CU_MEMHOSTREGISTER_PORTABLE),
              CUDA_SUCCESS);
  });
  EXPECT_TRUE(spins());
  found(std::to_string(soon.count()) + " ms beside a spinner of 1000 ms");
  EXPECT_LT(soon, kSoon);
  release(kStop);
  EXPECT_EQ(cu->cuMemHostUnregister(plain.data()), CUDA_SUCCESS);
  EXPECT_EQ(cu->cuIpcCloseMemHandle(imported), CUDA_SUCCESS);
}

class Binaries : public Fact {
 protected:
  CUresult load(const linkspan_image& image) const {
    const std::string text(image.begin, image.end);
    CUmodule module = nullptr;
    const CUresult r = cu->cuModuleLoadData(&module, text.c_str());
    if (r == CUDA_SUCCESS) {
      EXPECT_EQ(cu->cuModuleUnload(module), CUDA_SUCCESS);
    }
    return r;
  }
};

TEST_F(Binaries, ACubinOfAnotherArchitectureIsRefused) {
  if (embedded_images().empty()) GTEST_SKIP() << "needs a build with kernels";
  int major = 0;
  ASSERT_EQ(cu->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0),
            CUDA_SUCCESS);
  for (const linkspan_image& image : embedded_images())
    if (image.sm != 0 && image.sm / 10 != major) {
      EXPECT_EQ(load(image), CUDA_ERROR_NO_BINARY_FOR_GPU) << image.sm;
    }
  EXPECT_EQ(cu->cuStreamQuery(new_stream()), CUDA_SUCCESS);  // no harm done
}

TEST_F(Binaries, ThePtxOfTheBuildLoads) {
  if (embedded_images().empty()) GTEST_SKIP() << "needs a build with kernels";
  for (const linkspan_image& image : embedded_images())
    if (image.sm == 0) {
      EXPECT_EQ(load(image), CUDA_SUCCESS);
    }
}

}  // namespace loading_test
}  // namespace linkspan::test
