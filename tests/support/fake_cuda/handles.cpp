// tests/support/fake_cuda/handles.cpp - attributes of pointers, and handles of memory for other
// processes.
//
// A handle names the process and the file descriptor of the memfd. The importer opens it by /proc,
// which needs the same uid and pid namespace. Start time and inode detect a process that has ended,
// and a descriptor that was closed and now belongs to another file.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/support/fake_cuda/fake_cuda.hpp"

namespace linkspan::cuda::fake {
namespace {

using Kind = Allocation::Kind;

constexpr unsigned kHostPointer = 4;  // unnamed in our ABI

template <class T>
CUresult put(void* into, T value) {
  std::memcpy(into, &value, sizeof value);
  return CUDA_SUCCESS;
}

/// Writes an attribute of the driver's memory. After an error the value is zero.
CUresult put_attribute(void* value, CUpointer_attribute attribute, const Allocation& of,
                       std::uint64_t address) {
  switch (static_cast<unsigned>(attribute)) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return put<const void*>(
          value, of.access ? nullptr : world().devices[static_cast<std::size_t>(of.ordinal)].get());
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return put<unsigned>(value, of.on_host() ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:  // needs the current context
      put<std::uint64_t>(value, current_device() != nullptr ? address : 0);
      return current_device() != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
    case kHostPointer:
      put<std::uint64_t>(value, of.on_device() ? 0 : address);
      return of.on_device() ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return put<std::uint64_t>(value, of.buffer_id);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return put<unsigned>(value, of.kind == Kind::managed);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return put<int>(value, of.ordinal);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return put<unsigned>(value, of.kind == Kind::device);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return put<CUmemoryPool>(value, of.pool);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return put<std::uint64_t>(value, of.base);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return put<std::uint64_t>(value, of.bytes);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

/// Writes an attribute of any other address: zero, except for three.
void put_foreign_attribute(void* value, CUpointer_attribute attribute, std::uint64_t address) {
  switch (static_cast<unsigned>(attribute)) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      put<std::uint64_t>(value, 0);
      return;
    case kHostPointer:
      put<std::uint64_t>(value, address);
      return;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      put<int>(value, -2);
      return;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return;  // left as they are
    default:
      put<unsigned>(value, 0);
  }
}

bool without_ipc() {
  const char* ipc = std::getenv("FAKE_CUDA_IPC");
  return ipc != nullptr && std::strcmp(ipc, "0") == 0;
}

/// The contents of a CUipcMemHandle's 64 bytes.
struct Handle {
  std::uint64_t magic;
  Origin origin;
  std::uint64_t bytes;
  std::uint64_t device;  // the machine's index
  std::uint64_t unused[2];
};
constexpr std::uint64_t kMagic = 0x4c53464b43554441;

/// Returns field 22 of /proc/PID/stat, which differs when a pid is reused; zero if there is no such
/// process.
std::uint64_t start_time(int pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  std::array<char, 1024> text{};
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const bool got = read(fd, text.data(), text.size() - 1) > 0;
  close(fd);
  const char* after = got ? std::strrchr(text.data(), ')') : nullptr;
  for (int field = 2; after != nullptr && field < 22; ++field) after = std::strchr(after + 1, ' ');
  return after != nullptr ? std::strtoull(after, nullptr, 10) : 0;
}

/// Opens the exporter's memfd. -1: it is gone, or its number is another file's by now.
int open_origin(const Handle& handle) {
  const Origin& origin = handle.origin;
  if (origin.start_time == 0 || start_time(origin.pid) != origin.start_time) return -1;
  const std::string path =
      "/proc/" + std::to_string(origin.pid) + "/fd/" + std::to_string(origin.fd);
  struct stat facts {};
  if (stat(path.c_str(), &facts) != 0 || !S_ISREG(facts.st_mode) || facts.st_ino != origin.inode ||
      static_cast<std::uint64_t>(facts.st_size) != handle.bytes)
    return -1;
  return open(path.c_str(), O_RDWR | O_CLOEXEC);
}

}  // namespace

CUipcMemHandle describe_memfd(const Allocation& of) {
  struct stat facts {};
  if (fstat(of.fd, &facts) != 0) return {};
  const auto index = world().devices[static_cast<std::size_t>(of.ordinal)]->index;
  return std::bit_cast<CUipcMemHandle>(
      Handle{.magic = kMagic,
             .origin = {getpid(), of.fd, start_time(getpid()), facts.st_ino},
             .bytes = of.bytes,
             .device = static_cast<std::uint64_t>(index),
             .unused = {}});
}

int open_described(const CUipcMemHandle& bytes, std::uint64_t& size) {
  const auto handle = std::bit_cast<Handle>(bytes);
  size = handle.bytes;
  return handle.magic == kMagic ? open_origin(handle) : -1;
}

CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  const Lock lock(world().mutex);
  const Allocation* found = find_allocation(address);
  return found != nullptr ? put_attribute(value, attribute, *found, address)
                          : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** values,
                                CUdeviceptr address) {
  const Lock lock(world().mutex);
  const Allocation* found = find_allocation(address);
  for (unsigned i = 0; i < count; ++i) {
    if (found != nullptr)
      put_attribute(values[i], attributes[i], *found, address);
    else
      put_foreign_attribute(values[i], attributes[i], address);
  }
  return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr address) {
  Call call;
  if (call.error != CUDA_SUCCESS) return call.error;
  const Allocation* found = find_allocation(address);
  if (found == nullptr || (found->on_device() && found->ordinal != call.device->ordinal))
    return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = found->base;
  if (bytes != nullptr) *bytes = found->bytes;
  return CUDA_SUCCESS;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  Call call;
  if (call.error != CUDA_SUCCESS) return call.error;
  const Allocation* found = find_allocation(address);
  if (found == nullptr || found->kind != Kind::device || without_ipc())
    return CUDA_ERROR_INVALID_VALUE;
  *handle = describe_memfd(*found);
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr* base, CUipcMemHandle in, unsigned flags) {
  Call call;
  if (call.error != CUDA_SUCCESS) return call.error;
  const auto handle = std::bit_cast<Handle>(in);
  if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || handle.magic != kMagic)
    return CUDA_ERROR_INVALID_VALUE;
  const Origin& origin = handle.origin;
  if (origin.pid == getpid() && origin.start_time == start_time(getpid()))
    return CUDA_ERROR_INVALID_CONTEXT;
  if (without_ipc()) return CUDA_ERROR_NOT_SUPPORTED;
  const int fd = open_origin(handle);
  if (fd < 0) return CUDA_ERROR_INVALID_VALUE;
  Allocation* mapped = nullptr;
  for (const auto& [at, allocation] : world().allocations)
    if (allocation->origin == origin && allocation->ordinal == call.device->ordinal)
      mapped = allocation.get();
  if (mapped == nullptr) {
    mapped = map_device(Kind::imported, call.device->ordinal, fd, handle.bytes);
    if (mapped != nullptr) mapped->origin = origin;
  }
  close(fd);
  if (mapped == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  ++mapped->opens;
  *base = mapped->base;
  return CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr base) {
  Call call;
  if (call.error != CUDA_SUCCESS) return call.error;
  Allocation* found = find_allocation(base);
  if (found == nullptr || found->base != base || found->kind != Kind::imported)
    return CUDA_ERROR_INVALID_VALUE;
  const AllocationRef keep = world().allocations[base];
  if (const CUresult r = drain_and_hold_up(call.lock, *call.device); r != CUDA_SUCCESS) return r;
  if (keep->live && --keep->opens == 0) forget(*keep);
  return CUDA_SUCCESS;
}

}  // namespace linkspan::cuda::fake
