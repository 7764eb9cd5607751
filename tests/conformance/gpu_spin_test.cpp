// Tests a transfer while a user's kernel occupies the GPU until it is stopped. The library loads
// its functions when a GPU comes up; a function loaded later would start when the spinner ends
// (docs/cuda_notes.md, "lazy loading").
#include <atomic>

#include "cuda/stream.hpp"

#include "tests/conformance/engine_fixture.hpp"

namespace linkspan::test {
namespace gpu_spin_test {

using namespace std::chrono_literals;

constexpr std::uint64_t kMiB = 1u << 20;

/// Spins until the word is not zero, or for five seconds.
constexpr char kSpinner[] = R"(
.version 7.0
.target sm_80
.address_size 64
.visible .entry spin(.param .u64 word)
{
  .reg .pred %p;
  .reg .u32 %v;
  .reg .u64 %a, %begin, %now, %spent;
  ld.param.u64 %a, [word];
  mov.u64 %begin, %globaltimer;
again:
  ld.volatile.global.u32 %v, [%a];
  setp.ne.u32 %p, %v, 0;
  @%p bra done;
  mov.u64 %now, %globaltimer;
  sub.u64 %spent, %now, %begin;
  setp.lt.u64 %p, %spent, 5000000000;
  @%p bra again;
done:
  ret;
}
)";

class GpuSpin : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Status status = need_gpus(2); !status.ok()) GTEST_SKIP() << status.to_string();
    if (topology()->devices()[0].name.starts_with("Simulated"))
      GTEST_SKIP() << "needs a real GPU: the simulated one has no kernels of its user";
  }
};

TEST_F(GpuSpin, AFirstTransferDoesNotWaitForTheKernelsOfItsUser) {
  Held here;  // outlives the Engine
  Pair pair;
  here = Held::make(pair.engine, {.kind = "device0"});
  pair.far.add("there", {.kind = "device1"});
  here.fill(1);
  pair.far.fill("there", 2);

  const cuda::Device& device = *take(topology()->activate(topology()->devices()[0].uuid));
  const cuda::DeviceScope scope = take(device.enter());
  const cuda::Driver& driver = device.driver();
  cuda::CUmodule module = nullptr;
  cuda::CUfunction spin = nullptr;
  ASSERT_EQ(driver.cuModuleLoadData(&module, kSpinner), cuda::CUDA_SUCCESS);
  ASSERT_EQ(driver.cuModuleGetFunction(&spin, module, "spin"), cuda::CUDA_SUCCESS);
  const cuda::PinnedBuffer memory = take(cuda::PinnedBuffer::create(scope, 64));
  std::atomic_ref<std::uint32_t> stop(*reinterpret_cast<std::uint32_t*>(memory.data()));
  stop = 0;
  cuda::Stream stream = take(cuda::Stream::create(scope));
  cuda::CUdeviceptr word = memory.device_address();
  void* arguments[] = {&word};
  ASSERT_EQ(driver.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream.get(), arguments, nullptr),
            cuda::CUDA_SUCCESS);

  const RemoteRegion there = pair.remote("there");  // opened while it spins
  const Block whole[] = {{0, 0, kMiB}};
  EXPECT_EQ(take(pair.peer.write(here.region, there, whole)).wait(2s).to_string(), "ok");
  std::vector<Block> many;  // by the kernel
  for (std::uint64_t i = 0; i < 1024; ++i) many.push_back({i * 1024, i * 1024, 512});
  EXPECT_EQ(
      take(pair.peer.explain(Op::read, here.region, there, many.size(), many.size() * 512)).path,
      "cuda_ipc+sm_kernel");
  EXPECT_EQ(take(pair.peer.read(here.region, there, many)).wait(2s).to_string(), "ok");
  EXPECT_EQ(stream.query(scope).code(), Code::pending)
      << "the spinner ended, this test shows nothing";
  stop = 1;
  const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
  while (stream.query(scope).code() == Code::pending && !limit.passed()) {
  }
  EXPECT_EQ(pair.far.difference("there", 2, {{0, 1, 0, kMiB}}), "");
  EXPECT_EQ(driver.cuModuleUnload(module), cuda::CUDA_SUCCESS);
}

}  // namespace gpu_spin_test
}  // namespace linkspan::test
