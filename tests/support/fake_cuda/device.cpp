// tests/support/fake_cuda/device.cpp - initialisation, devices, contexts and error names.
//
// Visible devices are chosen by index only. A primary context is its Device; events outlive it.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/support/fake_cuda/fake_cuda.hpp"

namespace linkspan::cuda::fake {
namespace {

constexpr int kMaxDevices = 16;

// Trivial, so that calls in other destructors of the thread still find it.
struct ContextStack {
  std::array<Device*, 32> at;
  std::size_t depth;
};
thread_local ContextStack contexts{};
thread_local CUstreamCaptureMode thread_capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/// Indices of the machine, in the order of the process's ordinals. As with the real driver, what
/// follows an entry that names no device is not visible.
std::vector<int> visible_devices() {
  const char* count_text = std::getenv("FAKE_CUDA_DEVICES");
  const int count = std::clamp(count_text != nullptr ? std::atoi(count_text) : 2, 0, kMaxDevices);
  std::vector<int> visible;
  const char* list = std::getenv("CUDA_VISIBLE_DEVICES");
  if (list == nullptr) {
    for (int index = 0; index < count; ++index) visible.push_back(index);
    return visible;
  }
  while (true) {
    char* end = nullptr;
    const long index = std::strtol(list, &end, 10);
    if (end == list || index < 0 || index >= count) return visible;
    visible.push_back(static_cast<int>(index));
    if (*end != ',') return visible;
    list = end + 1;
  }
}

bool reach_each_other() {
  const char* peer = std::getenv("FAKE_CUDA_PEER");
  return peer == nullptr || std::strcmp(peer, "0") != 0;
}

Device* device_at(int ordinal) {
  const auto& devices = world().devices;
  const auto index = static_cast<std::size_t>(ordinal);
  return ordinal >= 0 && index < devices.size() ? devices[index].get() : nullptr;
}
Device* device_of(CUcontext context) {
  for (const auto& device : world().devices)
    if (reinterpret_cast<CUcontext>(device.get()) == context) return device.get();
  return nullptr;
}

/// Ends a context with its streams and memory. Chunks and pools belong to no context.
void end_context(Lock& lock, Device& device) {
  World& w = world();
  drain(lock, device);  // lost: nothing will run
  for (auto next = w.streams.begin(); next != w.streams.end();) {
    const auto at = next++;
    if (&at->second->device != &device) continue;
    retire(std::move(at->second));
    w.streams.erase(at);
  }
  for (auto next = w.allocations.begin(); next != w.allocations.end();) {
    Allocation& allocation = *(next++)->second;
    if (allocation.ordinal == device.ordinal && !allocation.access) forget(allocation);
  }
  device.default_stream = nullptr;
  device.peers.clear();
}

CUresult put_text(char* into, int bytes, const std::string& text) {
  if (bytes <= 0) return CUDA_ERROR_INVALID_VALUE;
  std::snprintf(into, static_cast<std::size_t>(bytes), "%s", text.c_str());
  return CUDA_SUCCESS;
}

const char* name_of(CUresult error) {
  switch (error) {
#define LINKSPAN_NAME(name) \
  case name:                \
    return #name;
    LINKSPAN_NAME(CUDA_SUCCESS)
    LINKSPAN_NAME(CUDA_ERROR_INVALID_VALUE)
    LINKSPAN_NAME(CUDA_ERROR_OUT_OF_MEMORY)
    LINKSPAN_NAME(CUDA_ERROR_NOT_INITIALIZED)
    LINKSPAN_NAME(CUDA_ERROR_DEINITIALIZED)
    LINKSPAN_NAME(CUDA_ERROR_NO_DEVICE)
    LINKSPAN_NAME(CUDA_ERROR_INVALID_DEVICE)
    LINKSPAN_NAME(CUDA_ERROR_INVALID_CONTEXT)
    LINKSPAN_NAME(CUDA_ERROR_INVALID_HANDLE)
    LINKSPAN_NAME(CUDA_ERROR_NOT_FOUND)
    LINKSPAN_NAME(CUDA_ERROR_NOT_READY)
    LINKSPAN_NAME(CUDA_ERROR_ILLEGAL_ADDRESS)
    LINKSPAN_NAME(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
    LINKSPAN_NAME(CUDA_ERROR_CONTEXT_IS_DESTROYED)
    LINKSPAN_NAME(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
    LINKSPAN_NAME(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)
    LINKSPAN_NAME(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
    LINKSPAN_NAME(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
#undef LINKSPAN_NAME
    default:
      return nullptr;
  }
}

}  // namespace

World& world() {
  static World& only = *new World;
  return only;
}

Device* current_device() { return contexts.depth != 0 ? contexts.at[contexts.depth - 1] : nullptr; }

CUstreamCaptureMode capture_mode() { return thread_capture_mode; }

Call::Call() : lock(world().mutex) { enter(current_device()); }

void Call::enter(Device* in) {
  device = in;
  if (device == nullptr)
    error = CUDA_ERROR_INVALID_CONTEXT;
  else if (device->retained == 0)
    error = CUDA_ERROR_CONTEXT_IS_DESTROYED;
  else if (device->lost)
    error = CUDA_ERROR_ILLEGAL_ADDRESS;
}

CUresult cuInit(unsigned flags) {
  World& w = world();
  const Lock lock(w.mutex);
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (w.initialised) return CUDA_SUCCESS;
  for (const int index : visible_devices())
    w.devices.push_back(std::make_unique<Device>(
        Device{.ordinal = static_cast<int>(w.devices.size()), .index = index, .peers = {}}));
  if (w.devices.empty()) return CUDA_ERROR_NO_DEVICE;
  w.initialised = true;
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  *version = kDriverVersion;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** text) {
  *text = name_of(error);
  return *text != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = name_of(error) != nullptr ? "simulated" : nullptr;
  return *text != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetCount(int* count) {
  *count = static_cast<int>(world().devices.size());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (device_at(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int bytes, CUdevice device) {
  if (device_at(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  return put_text(name, bytes, "Simulated GPU");
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  const Device* found = device_at(device);
  if (found == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  std::memcpy(uuid->bytes, "Simulated GPU \0", sizeof uuid->bytes);
  uuid->bytes[15] = static_cast<char>('0' + found->index);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char* bus_id, int bytes, CUdevice device) {
  const Device* found = device_at(device);
  if (found == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), "0000:%02X:00.0",
                static_cast<unsigned>(found->index + 1));
  return put_text(bus_id, bytes, text.data());
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  if (device_at(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *value = 8;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
      *value = 3;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = 9;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING:
      *value = 0;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS:
      *value = 1;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED:
      *value = exports_dma_buf() ? 1 : 0;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuDeviceTotalMem(std::size_t* bytes, CUdevice device) {
  if (device_at(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = kDeviceBytes;
  return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  if (device_at(device) == nullptr || device_at(peer) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *can = device != peer && reach_each_other();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute, CUdevice device,
                                 CUdevice peer) {
  if (device_at(device) == nullptr || device_at(peer) == nullptr || device == peer)
    return CUDA_ERROR_INVALID_DEVICE;
  if (attribute != CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED) return CUDA_ERROR_INVALID_VALUE;
  const char* const link = std::getenv("FAKE_CUDA_PEER");
  *value = reach_each_other() && (link == nullptr || std::strcmp(link, "pcie") != 0);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  const Lock lock(world().mutex);
  Device* found = device_at(device);
  if (found == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  ++found->retained;
  *context = reinterpret_cast<CUcontext>(found);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  Lock lock(world().mutex);
  Device* found = device_at(device);
  if (found == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (found->retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (--found->retained == 0) end_context(lock, *found);
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context) {
  const Lock lock(world().mutex);
  Device* device = device_of(context);
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (contexts.depth == contexts.at.size()) return CUDA_ERROR_OUT_OF_MEMORY;
  contexts.at[contexts.depth++] = device;
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext* context) {
  if (contexts.depth == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = reinterpret_cast<CUcontext>(current_device());
  --contexts.depth;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = reinterpret_cast<CUcontext>(current_device());
  return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  const Call call;
  if (call.error != CUDA_SUCCESS) return call.error;
  const Device* other = device_of(peer);
  if (other == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (other == call.device || !reach_each_other()) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return call.device->peers.insert(other->ordinal).second ? CUDA_SUCCESS
                                                          : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  std::swap(*mode, thread_capture_mode);
  return CUDA_SUCCESS;
}

}  // namespace linkspan::cuda::fake
