#include "tests/support/fake_runtime/cuda_runtime.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "cuda/topology.hpp"
#include "tests/support/fake_cuda/host_code.hpp"

using linkspan::Code;
using linkspan::Result;
using linkspan::Scope;
using linkspan::Status;
namespace cuda = linkspan::cuda;

namespace {

using cuda::CUdeviceptr;

struct Runtime {
  std::mutex mutex;
  std::unique_ptr<cuda::Topology> topology;
  Status why_none;
  const cuda::Device* device = nullptr;
  std::optional<cuda::Stream> copies;
  cuda::CUfunction host_code = nullptr;
  std::map<void*, cuda::DeviceBuffer> memory;
  std::condition_variable ended;               // of `running`
  std::map<const cuda::Device*, int> running;  // kernels
  std::set<std::pair<const cuda::Device*, const void*>> loaded;
};

Runtime& runtime() {
  static Runtime& one = *[] {
    auto* made = new Runtime;  // never ends: a driver that unloads is asked for nothing
    auto topology = cuda::Topology::create();
    if (topology.ok())
      made->topology = *std::move(topology);
    else
      made->why_none = topology.status();
    return made;
  }();
  return one;
}

std::string& last_words() {
  thread_local std::string words;
  return words;
}

cudaError_t failed(const Status& status) {
  last_words() = status.to_string();
  return 999;
}

/// Runs `act` in the device's context.
template <class Act>
cudaError_t within(Act act) {
  Runtime& r = runtime();
  if (r.device == nullptr && cudaSetDevice(0) != cudaSuccess) return cudaErrorNoDevice;
  const auto scope = r.device->enter();
  if (!scope.ok()) return failed(scope.status());
  const Status status = act(r, *scope);
  return status.ok() ? cudaSuccess : failed(status);
}

CUdeviceptr address_of(const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

struct Kernel {
  std::function<void(const fake_runtime::See&)> run;
  const cuda::Device* device;
};

void count_end(const cuda::Device* device) {
  Runtime& r = runtime();
  const std::lock_guard lock(r.mutex);
  --r.running[device];
  r.ended.notify_all();
}

void run_kernel(cuda::fake::Reach reach, const void* device, void* argument) {
  const std::unique_ptr<Kernel> kernel(static_cast<Kernel*>(argument));
  kernel->run([&](const void* at) -> void* {
    void* const here = at == nullptr ? nullptr : reach(device, address_of(at));
    return here != nullptr ? here : const_cast<void*>(at);
  });
  count_end(kernel->device);
}

}  // namespace

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorNoDevice ? "no CUDA-capable device is detected" : last_words().c_str();
}

cudaError_t cudaGetDeviceCount(int* count) {
  Runtime& r = runtime();
  *count = r.topology ? static_cast<int>(r.topology->devices().size()) : 0;
  return *count != 0 ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  const cuda::DeviceInfo& info = runtime().topology->devices()[static_cast<std::size_t>(device)];
  *properties = {};
  info.name.copy(properties->name, sizeof properties->name - 1);
  std::memcpy(properties->uuid.bytes, info.uuid.data(), sizeof properties->uuid.bytes);
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int ordinal) {
  Runtime& r = runtime();
  if (!r.topology) return cudaErrorNoDevice;
  const auto devices = r.topology->devices();
  if (ordinal < 0 || static_cast<std::size_t>(ordinal) >= devices.size())
    return failed({Code::invalid_argument, Scope::request, "no such device"});
  auto device = r.topology->activate(devices[static_cast<std::size_t>(ordinal)].uuid);
  if (!device.ok()) return failed(device.status());
  r.device = *device;
  return within([](Runtime& own, const cuda::DeviceScope& scope) -> Status {
    auto stream = cuda::Stream::create(scope);
    if (!stream.ok()) return stream.status();
    own.copies = *std::move(stream);
    cuda::CUmodule module = nullptr;
    cuda::CUresult result = scope.driver().cuModuleLoadData(&module, "host code");
    if (result == cuda::CUDA_SUCCESS)
      result = scope.driver().cuModuleGetFunction(&own.host_code, module, cuda::fake::kHostCode);
    return to_status(scope.driver(), result, "the simulated driver's host code");
  });
}

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  return within([&](Runtime& r, const cuda::DeviceScope& scope) -> Status {
    auto made = cuda::DeviceBuffer::create(scope, bytes);
    if (!made.ok()) return made.status();
    *memory = reinterpret_cast<void*>(made->address());
    const std::lock_guard lock(r.mutex);
    r.memory.emplace(*memory, *std::move(made));
    return {};
  });
}

cudaError_t cudaFree(void* memory) {
  Runtime& r = runtime();
  const std::lock_guard lock(r.mutex);
  return memory == nullptr || r.memory.erase(memory) == 1
             ? cudaSuccess
             : failed({Code::invalid_argument, Scope::request, "not of cudaMalloc"});
}

cudaError_t cudaMemset(void* memory, int value, std::size_t bytes) {
  return within([&](Runtime& r, const cuda::DeviceScope& scope) -> Status {
    const Status status =
        r.copies->fill(scope, address_of(memory), static_cast<unsigned char>(value), bytes);
    return status.ok() ? r.copies->synchronize(scope) : status;
  });
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  return within([&](Runtime& r, const cuda::DeviceScope& scope) -> Status {
    const Status status = r.copies->copy(scope, address_of(to), address_of(from), bytes);
    return status.ok() ? r.copies->synchronize(scope) : status;
  });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return within([&](Runtime&, const cuda::DeviceScope& scope) -> Status {
    auto made = cuda::Stream::create(scope);
    if (!made.ok()) return made.status();
    *stream = new cuda::Stream(*std::move(made));
    return {};
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return within([&](Runtime&, const cuda::DeviceScope& scope) {
    return static_cast<cuda::Stream*>(stream)->synchronize(scope);
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete static_cast<cuda::Stream*>(stream);
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void* kernel) {
  return within([&](Runtime& r, const cuda::DeviceScope&) -> Status {
    const std::lock_guard lock(r.mutex);
    r.loaded.emplace(r.device, kernel);
    return {};
  });
}

cudaError_t fake_runtime::run(cudaStream_t stream, const void* function,
                              std::function<void(const See&)> code) {
  return within([&](Runtime& r, const cuda::DeviceScope& scope) {
    {
      std::unique_lock lock(r.mutex);
      if (r.loaded.emplace(r.device, function).second)
        r.ended.wait(lock, [&] { return r.running[r.device] == 0; });
      ++r.running[r.device];
    }
    cuda::fake::HostCode host_code = run_kernel;
    auto held = std::make_unique<Kernel>(Kernel{std::move(code), r.device});
    void* argument = held.get();
    void* parameters[] = {&host_code, &argument};
    Status status =
        static_cast<cuda::Stream*>(stream)->launch(scope, r.host_code, 1, 1, parameters);
    if (status.ok())
      (void)held.release();  // run_kernel's
    else
      count_end(r.device);
    return status;
  });
}
