// The GPU copier over a driver whose streams run when the test lets them.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "copy/gpu_copier.hpp"

namespace linkspan::copy {

using namespace linkspan::cuda;  // NOLINT(google-build-using-namespace)
using std::chrono::milliseconds, std::chrono::seconds;

using Bytes = std::vector<unsigned char>;

inline constexpr unsigned char kPoison = 0xEE;

inline std::uint64_t address(const void* p) { return reinterpret_cast<std::uint64_t>(p); }

struct Script {
  using Work = std::deque<std::function<void()>>;
  Work work;                    // of all lanes, in order of submission
  Work urgent;                  // of the stream with a priority
  int copies_until_error = -1;  // never
  CUresult copy_error = CUDA_ERROR_INVALID_VALUE;
  CUresult launch = CUDA_SUCCESS, write = CUDA_SUCCESS, query = CUDA_SUCCESS;
  CUresult load = CUDA_SUCCESS;
  CUresult wait = CUDA_SUCCESS;
  int queries = 0, records = 0, waits = 0;
  unsigned ctas = 0;  // of the last kernel

  void run(std::size_t entries = ~std::size_t{0}) { run(work, entries); }
  void run_urgent() { run(urgent, urgent.size()); }
  static void run(Work& of, std::size_t entries) {
    for (; entries > 0 && !of.empty(); --entries) {
      of.front()();
      of.pop_front();
    }
  }
  /// Returns the work of a stream, by its handle.
  Work& operator[](CUstream stream) {
    return reinterpret_cast<Work*>(stream) == &urgent ? urgent : work;
  }
};
inline Script script;

template <class T>
T* handle() {
  static int something;
  return reinterpret_cast<T*>(&something);
}

inline void* memory(CUdeviceptr p) { return reinterpret_cast<void*>(p); }

inline Driver scripted_driver() {
  Driver d;
  d.cuGetErrorName = [](CUresult, const char** text) { return *text = "SCRIPTED", CUDA_SUCCESS; };
  d.cuGetErrorString = d.cuGetErrorName;
  d.cuThreadExchangeStreamCaptureMode = [](CUstreamCaptureMode*) { return CUDA_SUCCESS; };
  d.cuCtxPushCurrent = [](CUcontext) { return CUDA_SUCCESS; };
  d.cuCtxPopCurrent = [](CUcontext*) { return CUDA_SUCCESS; };
  d.cuDevicePrimaryCtxRetain = [](CUcontext* context, CUdevice) {
    *context = handle<OpaqueContext>();
    return CUDA_SUCCESS;
  };
  d.cuDevicePrimaryCtxRelease = [](CUdevice) { return CUDA_SUCCESS; };
  d.cuModuleLoadData = [](CUmodule* module, const void*) {
    *module = handle<OpaqueModule>();
    return script.load;
  };
  d.cuModuleUnload = [](CUmodule) { return CUDA_SUCCESS; };
  d.cuModuleGetFunction = [](CUfunction* function, CUmodule, const char*) {
    *function = handle<OpaqueFunction>();
    return CUDA_SUCCESS;
  };
  d.cuFuncGetAttribute = [](int*, CUfunction_attribute, CUfunction) { return CUDA_SUCCESS; };
  d.cuStreamCreateWithPriority = [](CUstream* stream, unsigned, int priority) {
    *stream = reinterpret_cast<CUstream>(priority == 0 ? &script.work : &script.urgent);
    return CUDA_SUCCESS;
  };
  d.cuStreamDestroy = [](CUstream) { return CUDA_SUCCESS; };
  d.cuStreamSynchronize = [](CUstream s) { return script.run(script[s], 100), CUDA_SUCCESS; };
  d.cuMemAlloc = [](CUdeviceptr* p, std::size_t bytes) {
    *p = address(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096));
    return CUDA_SUCCESS;
  };
  d.cuMemFree = [](CUdeviceptr p) { return std::free(memory(p)), CUDA_SUCCESS; };
  d.cuMemsetD8Async = [](CUdeviceptr to, unsigned char value, std::size_t bytes, CUstream s) {
    script[s].emplace_back([=] { std::memset(memory(to), value, bytes); });
    return CUDA_SUCCESS;
  };
  d.cuMemHostAlloc = [](void** p, std::size_t bytes, unsigned) {
    *p = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    std::memset(*p, kPoison, bytes);
    return CUDA_SUCCESS;
  };
  d.cuMemFreeHost = [](void* p) { return std::free(p), CUDA_SUCCESS; };
  d.cuMemHostGetDevicePointer = [](CUdeviceptr* to, void* p, unsigned) {
    return *to = address(p), CUDA_SUCCESS;
  };
  d.cuMemcpyAsync = [](CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream s) {
    if (script.copies_until_error == 0) return script.copy_error;
    --script.copies_until_error;
    script[s].emplace_back([=] { std::memcpy(memory(to), memory(from), bytes); });
    return CUDA_SUCCESS;
  };
  d.cuStreamWriteValue64 = [](CUstream s, CUdeviceptr to, std::uint64_t value, unsigned) {
    if (script.write == CUDA_SUCCESS)
      script[s].emplace_back([=] { std::memcpy(memory(to), &value, sizeof value); });
    return script.write;
  };
  d.cuEventCreate = [](CUevent* event, unsigned) {
    return *event = handle<OpaqueEvent>(), CUDA_SUCCESS;
  };
  d.cuEventDestroy = [](CUevent) { return CUDA_SUCCESS; };
  d.cuEventRecord = [](CUevent, CUstream) { return ++script.records, CUDA_SUCCESS; };
  d.cuStreamWaitEvent = [](CUstream, CUevent, unsigned) { return ++script.waits, script.wait; };
  d.cuStreamQuery = [](CUstream) {
    ++script.queries;
    return script.query == CUDA_SUCCESS && !script.work.empty() ? CUDA_ERROR_NOT_READY
                                                                : script.query;
  };
  d.cuLaunchKernel = [](CUfunction, unsigned ctas, unsigned, unsigned, unsigned, unsigned, unsigned,
                        unsigned, CUstream, void** parameters, void**) {
    if (script.launch != CUDA_SUCCESS) return script.launch;
    script.ctas = ctas;
    const auto word = [&](int i) { return memory(*static_cast<CUdeviceptr*>(parameters[i])); };
    const auto* list = static_cast<const Piece*>(word(0));
    const unsigned count = *static_cast<unsigned*>(parameters[1]);
    const auto* abort = static_cast<const std::uint32_t*>(word(2));
    auto* aborted = static_cast<std::uint32_t*>(word(3));
    script.work.emplace_back([=] {
      for (const Piece& piece : std::span(list, count)) {
        if (*abort != 0) return void(*aborted = 1);
        std::memcpy(memory(piece.to), memory(piece.from), piece.bytes);
      }
    });
    return CUDA_SUCCESS;
  };
  return d;
}

class GpuCopierTest : public ::testing::Test {
 protected:
  void SetUp() override {
    script = {};
    open();
  }

  void open(const GpuCopier::Bounds& bounds = {.queues = 2}) {
    copier.reset();
    auto opened = Device::open(driver, info);
    ASSERT_TRUE(opened.ok()) << opened.status().to_string();
    (*opened)->load_kernels();
    device = *std::move(opened);
    auto made = GpuCopier::create(*device, bounds, clock);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    copier = *std::move(made);
  }
  /// Copies one byte between two memories of the test.
  Result<Ticket> start(unsigned lane = 0, Method method = Method::copy_engine) {
    const Piece piece{address(&to), address(&from), 1};
    return copier->start({.method = method, .pieces = {&piece, 1}, .queue = lane});
  }
  /// Starts a kernel of so many pieces that it is not joined with others.
  Result<Ticket> start_kernel() {
    const std::vector<Piece> pieces(GpuCopier::kJoinedPieces + 1,
                                    {address(&to), address(&from), 1});
    return copier->start({.method = Method::sm_kernel, .pieces = pieces});
  }

  const Driver driver = scripted_driver();
  const DeviceInfo info{.name = "scripted", .bus_id = "", .sm = 90, .sm_count = 2};
  base::FakeClock clock;
  std::unique_ptr<const Device> device;
  std::unique_ptr<GpuCopier> copier;
  unsigned char from = 7, to = kPoison;
};

}  // namespace linkspan::copy
