#include "cuda/topology.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>

namespace linkspan::cuda {
namespace {

Result<DeviceInfo> describe(const Driver& driver, int ordinal) {
  DeviceInfo info;
  info.ordinal = ordinal;
  CUdevice device = 0;
  CUuuid uuid{};
  std::array<char, 256> name{};
  std::array<char, 32> bus_id{};
  std::size_t bytes = 0;
  int major = 0, minor = 0;
  // Stops at the first call that fails and remembers which it was.
  CUresult result = CUDA_SUCCESS;
  const char* call = "";
  const auto step = [&](const char* what, auto function, auto... arguments) {
    if (result != CUDA_SUCCESS) return;
    call = what;
    result = function(arguments...);
  };
  step("cuDeviceGet", driver.cuDeviceGet, &device, ordinal);
  const auto ask = [&](int* value, CUdevice_attribute attribute) {
    step("cuDeviceGetAttribute", driver.cuDeviceGetAttribute, value, attribute, device);
  };
  step("cuDeviceGetUuid", driver.cuDeviceGetUuid, &uuid, device);
  step("cuDeviceGetName", driver.cuDeviceGetName, name.data(), static_cast<int>(name.size() - 1),
       device);
  step("cuDeviceGetPCIBusId", driver.cuDeviceGetPCIBusId, bus_id.data(),
       static_cast<int>(bus_id.size() - 1), device);
  step("cuDeviceTotalMem", driver.cuDeviceTotalMem, &bytes, device);
  ask(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  ask(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  ask(&info.sm_count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  ask(&info.copy_engines, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT);
  int dma_buf = 0;
  ask(&dma_buf, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
  if (result != CUDA_SUCCESS) return to_status(driver, result, call);
  info.uuid = std::bit_cast<GpuUuid>(uuid);
  info.name = name.data();
  info.bus_id = bus_id.data();
  info.sm = 10 * major + minor;
  info.memory_bytes = bytes;
  info.dma_buf = dma_buf != 0;
  int ordering = 0;  // drivers that do not know of it answer with an error
  if (driver.cuDeviceGetAttribute(&ordering, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING,
                                  device) == CUDA_SUCCESS)
    info.orders_network_writes = ordering >= int{CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER};
  info.fabric = nvlink_fabric(info.bus_id);
  return info;
}

}  // namespace

Status has_peer_access(const Device& from, const DeviceInfo& to) {
  const Driver& driver = from.driver();
  const Result<DeviceScope> outside = DeviceScope::without_context(driver);
  if (!outside.ok()) return outside.status();
  int can = 0;
  const CUresult r = driver.cuDeviceCanAccessPeer(&can, from.info().ordinal, to.ordinal);
  if (r != CUDA_SUCCESS) return to_status(driver, r, "cuDeviceCanAccessPeer");
  if (can != 0) return {};
  return {Code::unsupported, Scope::request,
          "the GPU at " + from.info().bus_id + " has no peer access to that at " + to.bus_id};
}

bool has_native_atomics(const Device& from, const DeviceInfo& to) {
  if (from.info().uuid == to.uuid) return true;
  int native = 0;
  return from.driver().cuDeviceGetP2PAttribute(&native,
                                               CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED,
                                               from.info().ordinal, to.ordinal) == CUDA_SUCCESS &&
         native != 0;
}

Status enable_peer_access(const Device& from, const Device& to) {
  if (Status can = has_peer_access(from, to.info()); !can.ok()) return can;
  const Result<DeviceScope> scope = from.enter();
  if (!scope.ok()) return scope.status();
  const CUresult r = from.driver().cuCtxEnablePeerAccess(to.context(), 0);
  if (r == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) return {};  // by the user too
  return to_status(from.driver(), r, "cuCtxEnablePeerAccess");
}

Result<std::unique_ptr<Device>> Device::open(const Driver& driver, const DeviceInfo& info) {
  const Result<DeviceScope> outside = DeviceScope::without_context(driver);
  if (!outside.ok()) return outside.status();
  CUcontext context = nullptr;
  if (const CUresult r = driver.cuDevicePrimaryCtxRetain(&context, info.ordinal); r != CUDA_SUCCESS)
    return to_status(driver, r, "cuDevicePrimaryCtxRetain");
  std::unique_ptr<Device> device(new Device(driver, info, context));
  const Result<DeviceScope> scope = device->enter();
  if (!scope.ok()) return scope.status();
  auto events = EventPool::create(*scope, kEvents);
  if (!events.ok()) return events.status();
  device->events_ = *std::move(events);
  return device;
}

void Device::load_kernels() {
  const Result<DeviceScope> scope = enter();
  Result<Kernels> kernels = scope.ok() ? Kernels::load(*scope, embedded_images(), info_.sm)
                                       : Result<Kernels>(scope.status());
  kernels_status_ = kernels.status();
  if (kernels.ok()) kernels_.emplace(*std::move(kernels));
}

Device::~Device() {
  {
    const Result<DeviceScope> scope = enter();  // once for thousands of events
    events_.reset();
    kernels_.reset();
  }
  const Result<DeviceScope> outside = DeviceScope::without_context(driver_);
  if (outside.ok()) driver_.cuDevicePrimaryCtxRelease(info_.ordinal);
}

Result<std::unique_ptr<Topology>> Topology::create() {
  const Result<const Driver*> driver = Driver::get();
  if (!driver.ok()) return driver.status();
  const Result<DeviceScope> outside = DeviceScope::without_context(**driver);
  if (!outside.ok()) return outside.status();
  int count = 0;
  if (const CUresult r = (*driver)->cuDeviceGetCount(&count); r != CUDA_SUCCESS)
    return to_status(**driver, r, "cuDeviceGetCount");
  if (count <= 0) return Status(Code::unsupported, Scope::transport, "the CUDA driver has no GPU");
  std::unique_ptr<Topology> topology(new Topology(**driver));
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    Result<DeviceInfo> info = describe(**driver, ordinal);
    if (!info.ok()) return info.status();
    topology->infos_.push_back(*std::move(info));
  }
  topology->active_ = std::vector<std::atomic<const Device*>>(topology->infos_.size());
  return topology;
}

const DeviceInfo* Topology::find(const GpuUuid& uuid) const noexcept {
  const auto found = std::find_if(infos_.begin(), infos_.end(),
                                  [&](const DeviceInfo& info) { return info.uuid == uuid; });
  return found != infos_.end() ? &*found : nullptr;
}

const Device* Topology::active(const GpuUuid& uuid) const noexcept {
  const DeviceInfo* info = find(uuid);
  return info != nullptr ? active_[static_cast<std::size_t>(info->ordinal)].load() : nullptr;
}

std::vector<const Device*> Topology::all_active() const {
  std::vector<const Device*> devices;
  for (const auto& entry : active_)
    if (const Device* device = entry.load()) devices.push_back(device);
  return devices;
}

Result<const Device*> Topology::activate(const GpuUuid& uuid) {
  if (const Device* device = active(uuid)) return device;
  const base::MutexLock lock(activating_);
  if (const Device* device = active(uuid)) return device;
  Result<Device*> opened = open_locked(uuid);
  if (!opened.ok()) return opened.status();
  Device* device = *opened;
  device->load_kernels();
  for (const Device* other : all_active()) {
    // Failure is not an error here: a path that needs the access reports why it is missing.
    (void)enable_peer_access(*device, *other);
    (void)enable_peer_access(*other, *device);
  }
  active_[static_cast<std::size_t>(device->info().ordinal)].store(device);
  return device;
}

Result<const Device*> Topology::open(const GpuUuid& uuid) {
  if (const Device* device = active(uuid)) return device;
  const base::MutexLock lock(activating_);
  Result<Device*> opened = open_locked(uuid);
  if (!opened.ok()) return opened.status();
  return *opened;
}

Result<Device*> Topology::open_locked(const GpuUuid& uuid) {
  for (const auto& device : owned_)
    if (device->info().uuid == uuid) return device.get();
  const DeviceInfo* info = find(uuid);
  if (info == nullptr)
    return Status(Code::not_found, Scope::request, "no visible GPU has this UUID");
  Result<std::unique_ptr<Device>> opened = Device::open(driver_, *info);
  if (!opened.ok()) return opened.status();
  owned_.push_back(*std::move(opened));
  return owned_.back().get();
}

Result<PointerFacts> Topology::identify(const void* pointer) const {
  const Result<DeviceScope> outside = DeviceScope::without_context(driver_);
  if (!outside.ok()) return outside.status();
  CUcontext context = nullptr;
  return identify(pointer, context);
}

Result<PointerFacts> Topology::identify(const void* pointer, CUcontext& context) const {
  unsigned type = 0, managed = 0, legacy_ipc = 0;
  int ordinal = -1;
  unsigned long long buffer_id = 0;
  std::array attributes{
      CU_POINTER_ATTRIBUTE_CONTEXT,        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
      CU_POINTER_ATTRIBUTE_IS_MANAGED,     CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_BUFFER_ID};
  std::array<void*, attributes.size()> values{&context,    &type,    &managed,
                                              &legacy_ipc, &ordinal, &buffer_id};
  const auto address = reinterpret_cast<CUdeviceptr>(pointer);
  if (const CUresult r = driver_.cuPointerGetAttributes(attributes.size(), attributes.data(),
                                                        values.data(), address);
      r != CUDA_SUCCESS)
    return to_status(driver_, r, "cuPointerGetAttributes");

  PointerFacts facts;
  if (type == 0) return facts;  // unknown to the driver, which returns zeros and success
  facts.kind = managed != 0                   ? MemoryKind::managed
               : type == CU_MEMORYTYPE_DEVICE ? MemoryKind::device
                                              : MemoryKind::pinned;
  facts.buffer_id = buffer_id;
  facts.legacy_ipc = legacy_ipc != 0;
  if (ordinal < 0 || static_cast<std::size_t>(ordinal) >= infos_.size())
    return Status(Code::internal, Scope::request, "memory of a GPU that is not visible");
  facts.gpu = infos_[static_cast<std::size_t>(ordinal)].uuid;
  return facts;
}

Result<PointerFacts> Topology::query(const void* pointer) const {
  const Result<DeviceScope> outside = DeviceScope::without_context(driver_);
  if (!outside.ok()) return outside.status();
  CUcontext context = nullptr;
  Result<PointerFacts> known = identify(pointer, context);
  if (!known.ok() || known->kind == MemoryKind::host) return known;
  PointerFacts& facts = *known;
  const int ordinal = find(facts.gpu)->ordinal;

  // The queries below need a context that can access the memory. VMM and pool memory belong to no
  // context, so any context of the GPU works.
  if (const Device* device = active(facts.gpu); context == nullptr && device != nullptr)
    context = device->context();
  if (context != nullptr) {
    if (Status measured = measure(context, pointer, facts); !measured.ok()) return measured;
    return facts;
  }
  CUresult r = driver_.cuDevicePrimaryCtxRetain(&context, ordinal);
  if (r != CUDA_SUCCESS) return to_status(driver_, r, "cuDevicePrimaryCtxRetain");
  Status measured = measure(context, pointer, facts);
  driver_.cuDevicePrimaryCtxRelease(ordinal);
  if (!measured.ok()) return measured;
  return facts;
}

Status Topology::measure(CUcontext context, const void* pointer, PointerFacts& facts) const {
  const Result<DeviceScope> scope = DeviceScope::enter(driver_, context);
  if (!scope.ok()) return scope.status();
  const auto address = reinterpret_cast<CUdeviceptr>(pointer);
  // The device's address of registered host memory may be another than the host's.
  CUdeviceptr seen = 0, base = 0;
  std::size_t bytes = 0;
  CUresult r = driver_.cuPointerGetAttribute(&seen, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address);
  if (r != CUDA_SUCCESS) return to_status(driver_, r, "cuPointerGetAttribute(DEVICE_POINTER)");
  r = driver_.cuMemGetAddressRange(&base, &bytes, seen);
  if (r != CUDA_SUCCESS) return to_status(driver_, r, "cuMemGetAddressRange");
  facts.base = address - (seen - base);
  facts.bytes = bytes;
  // Memory with a legacy IPC handle is neither chunk nor pool (fact: Chunks.HaveNoLegacyHandle,
  // fact: Pools.OnlyThoseWithAHandleTypeAreShared), so cudaMalloc's memory costs no further call.
  if (facts.kind == MemoryKind::device && !facts.legacy_ipc) facts.layout = layout_of(pointer);
  return {};
}

Layout Topology::layout_of(const void* pointer) const {
  CUmemoryPool pool = nullptr;
  CUresult r = driver_.cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
                                             reinterpret_cast<CUdeviceptr>(pointer));
  if (r == CUDA_SUCCESS && pool != nullptr) return Layout::pool;
  CUmemGenericAllocationHandle handle = 0;
  if (driver_.cuMemMap == nullptr) return Layout::whole;
  r = driver_.cuMemRetainAllocationHandle(&handle, const_cast<void*>(pointer));
  if (r != CUDA_SUCCESS) return Layout::whole;
  driver_.cuMemRelease(handle);
  return Layout::chunk;
}

}  // namespace linkspan::cuda
