// tests/support/fake_cuda/chunks.cpp - virtual memory management and stream-ordered pools.
//
// A chunk is a memfd, which is its shareable handle too. A reservation is a range of addresses, and
// a range of views, into which chunks are mapped. The memory of a pool is a memfd for each
// allocation, created at once and freed in stream order.
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
using ChunkHandle = CUmemGenericAllocationHandle;

constexpr std::uint64_t kGranularity = std::uint64_t{2} << 20;
// The names of memfds, which end with the machine's index of the GPU.
constexpr std::string_view kChunkName = "fake_cuda_chunk_", kPoolName = "fake_cuda_pool_";

Device* device_of(const CUmemLocation& location) {
  const auto& devices = world().devices;
  const auto ordinal = static_cast<std::size_t>(location.id);
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE && ordinal < devices.size()
             ? devices[ordinal].get()
             : nullptr;
}

std::string name_for(std::string_view what, int ordinal) {
  return std::string(what) +
         std::to_string(world().devices[static_cast<std::size_t>(ordinal)]->index);
}

/// Returns our ordinal of the GPU that the memfd names, 0 for an invisible one; -1 if it is no such
/// memfd.
int named_ordinal(int fd, std::string_view what) {
  std::array<char, 256> name{};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  if (readlink(link.c_str(), name.data(), name.size() - 1) < 0) return -1;
  const std::string expected = "/memfd:" + std::string(what);
  if (!std::string_view(name.data()).starts_with(expected)) return -1;
  const int index = static_cast<int>(std::strtol(name.data() + expected.size(), nullptr, 10));
  for (const auto& device : world().devices)
    if (device->index == index) return device->ordinal;
  return 0;
}

bool change(const Access& access, const CUmemAccessDesc* list, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    if (device_of(list[i].location) == nullptr) return false;
  for (std::size_t i = 0; i < count; ++i) {
    if (list[i].flags != 0)
      access->insert(list[i].location.id);
    else
      access->erase(list[i].location.id);
  }
  return true;
}

/// Returns the reservation that contains the range; null if none does.
std::shared_ptr<Reservation> reservation_of(std::uint64_t address, std::uint64_t bytes) {
  const auto& all = world().reservations;
  auto found = all.upper_bound(address);
  if (bytes == 0 || found == all.begin()) return nullptr;
  const auto& reservation = std::prev(found)->second;
  const std::uint64_t offset = address - reservation->base;
  return offset <= reservation->bytes && bytes <= reservation->bytes - offset ? reservation
                                                                              : nullptr;
}

/// Returns the chunks of the range if it consists of whole chunks without a gap; else nothing.
std::vector<Allocation*> chunks_in(std::uint64_t address, std::uint64_t bytes) {
  std::vector<Allocation*> found;
  const std::uint64_t end = address + bytes;
  while (address < end) {
    Allocation* next = find_allocation(address);
    if (next == nullptr || !next->chunk || next->base != address || next->bytes > end - address)
      return {};
    found.push_back(next);
    address += next->bytes;
  }
  return found;
}

Pool* pool_of(CUmemoryPool handle) {
  const auto found = world().pools.find(handle);
  return found != world().pools.end() ? found->second.get() : nullptr;
}

CUmemoryPool add_pool(int ordinal, unsigned types, bool imported) {
  auto made =
      std::make_unique<Pool>(Pool{.ordinal = ordinal,
                                  .handle_types = types,
                                  .access = std::make_shared<std::set<int>>(std::set<int>{ordinal}),
                                  .imported = imported});
  const auto handle = reinterpret_cast<CUmemoryPool>(made.get());
  world().pools[handle] = std::move(made);
  return handle;
}

}  // namespace

CUresult cuMemCreate(ChunkHandle* handle, std::size_t bytes, const CUmemAllocationProp* prop,
                     unsigned long long flags) {
  const Lock lock(world().mutex);
  const Device* device = device_of(prop->location);
  if (device == nullptr || prop->type != 1 || flags != 0 || bytes == 0 || bytes % kGranularity != 0)
    return CUDA_ERROR_INVALID_VALUE;
  const int fd = new_memfd(name_for(kChunkName, device->ordinal).c_str(), bytes);
  if (fd < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = ++world().last_chunk;
  world().chunks[*handle] = {
      std::make_shared<Chunk>(fd, bytes, device->ordinal, prop->requestedHandleTypes), 1};
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(ChunkHandle handle) {
  const Lock lock(world().mutex);
  const auto found = world().chunks.find(handle);
  if (found == world().chunks.end()) return CUDA_ERROR_INVALID_VALUE;
  if (--found->second.count == 0) world().chunks.erase(found);
  return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(ChunkHandle* handle, void* address) {
  const Lock lock(world().mutex);
  const Allocation* found = find_allocation(reinterpret_cast<std::uint64_t>(address));
  if (found == nullptr || !found->chunk) return CUDA_ERROR_INVALID_VALUE;
  for (auto& [known, held] : world().chunks) {
    if (held.chunk != found->chunk) continue;
    ++held.count;
    *handle = known;
    return CUDA_SUCCESS;
  }
  *handle = ++world().last_chunk;
  world().chunks[*handle] = {found->chunk, 1};
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* address, std::size_t bytes, std::size_t, CUdeviceptr,
                             unsigned long long) {
  const Lock lock(world().mutex);
  if (bytes == 0 || bytes % kGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
  const auto made = reserve(bytes);
  if (made == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = made->base;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, std::size_t bytes) {
  const Lock lock(world().mutex);
  const auto found = world().reservations.find(address);
  if (found == world().reservations.end() || found->second->bytes != bytes)
    return CUDA_ERROR_INVALID_VALUE;
  const auto inside = world().allocations.lower_bound(address);
  if (inside != world().allocations.end() && inside->first < address + bytes)
    return CUDA_ERROR_INVALID_VALUE;
  world().reservations.erase(found);
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr address, std::size_t bytes, std::size_t offset, ChunkHandle handle,
                  unsigned long long flags) {
  const Lock lock(world().mutex);
  const auto held = world().chunks.find(handle);
  const auto in = reservation_of(address, bytes);
  if (held == world().chunks.end() || in == nullptr || offset != 0 || flags != 0 ||
      address % kGranularity != 0 || bytes % kGranularity != 0 || bytes > held->second.chunk->bytes)
    return CUDA_ERROR_INVALID_VALUE;
  const auto next = world().allocations.lower_bound(address);
  if (find_allocation(address) != nullptr ||
      (next != world().allocations.end() && next->first < address + bytes))
    return CUDA_ERROR_INVALID_VALUE;
  return map_chunk(in, address, held->second.chunk, bytes) != nullptr ? CUDA_SUCCESS
                                                                      : CUDA_ERROR_OUT_OF_MEMORY;
}

/// Does not wait for what is in flight, as the real one.
CUresult cuMemUnmap(CUdeviceptr address, std::size_t bytes) {
  const Lock lock(world().mutex);
  const auto found = chunks_in(address, bytes);
  if (found.empty()) return CUDA_ERROR_INVALID_VALUE;
  for (Allocation* each : found) {
    const AllocationRef keep = world().allocations[each->base];
    forget(*keep);
  }
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* list,
                        std::size_t count) {
  const Lock lock(world().mutex);
  const auto found = chunks_in(address, bytes);
  if (found.empty()) return CUDA_ERROR_INVALID_VALUE;
  for (Allocation* each : found)
    if (!change(each->access, list, count)) return CUDA_ERROR_INVALID_DEVICE;
  return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void* shareable, ChunkHandle handle, unsigned type,
                                      unsigned long long flags) {
  const Lock lock(world().mutex);
  const auto found = world().chunks.find(handle);
  if (found == world().chunks.end() || flags != 0 || type != kPosixFd ||
      (found->second.chunk->handle_types & type) == 0)
    return CUDA_ERROR_INVALID_VALUE;
  const int fd = fcntl(found->second.chunk->fd, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  std::memcpy(shareable, &fd, sizeof fd);
  return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(ChunkHandle* handle, void* shareable, unsigned type) {
  const Lock lock(world().mutex);
  const int given = static_cast<int>(reinterpret_cast<std::intptr_t>(shareable));
  const int ordinal = named_ordinal(given, kChunkName);
  struct stat facts {};
  if (type != kPosixFd || ordinal < 0 || fstat(given, &facts) != 0) return CUDA_ERROR_INVALID_VALUE;
  const int fd = fcntl(given, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = ++world().last_chunk;
  world().chunks[*handle] = {
      std::make_shared<Chunk>(fd, static_cast<std::uint64_t>(facts.st_size), ordinal, type), 1};
  return CUDA_SUCCESS;
}

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* props) {
  const Lock lock(world().mutex);
  const Device* device = device_of(props->location);
  if (device == nullptr || props->allocType != 1) return CUDA_ERROR_INVALID_VALUE;
  *pool = add_pool(device->ordinal, props->handleTypes, false);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  const Lock lock(world().mutex);
  return world().pools.erase(pool) != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc* list, std::size_t count) {
  const Lock lock(world().mutex);
  const Pool* pool = pool_of(handle);
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return change(pool->access, list, count) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, std::size_t bytes, CUmemoryPool handle,
                                 CUstream stream) {
  const Call call(stream);
  if (call.error != CUDA_SUCCESS) return call.error;
  const Pool* pool = pool_of(handle);
  if (pool == nullptr || pool->imported || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const int fd = new_memfd("fake_cuda", bytes);
  Allocation* made = fd >= 0 ? map_device(Kind::pool, pool->ordinal, fd, bytes) : nullptr;
  if (made == nullptr) {
    if (fd >= 0) close(fd);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  made->fd = fd;
  made->pool = handle;
  made->access = pool->access;
  *address = made->base;
  return CUDA_SUCCESS;
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  Call call(stream);
  if (call.error != CUDA_SUCCESS) return call.error;
  const Allocation* found = find_allocation(address);
  if (found == nullptr || found->kind != Kind::pool || found->base != address)
    return CUDA_ERROR_INVALID_VALUE;
  return submit(call, {.after = nullptr,
                       .work =
                           [freed = world().allocations[address]] {
                             const Lock lock(world().mutex);
                             if (!freed->live) return CUDA_ERROR_ILLEGAL_ADDRESS;
                             forget(*freed);
                             return CUDA_SUCCESS;
                           },
                       .mark = nullptr});
}

CUresult cuMemPoolExportToShareableHandle(void* shareable, CUmemoryPool handle, unsigned type,
                                          unsigned long long flags) {
  const Lock lock(world().mutex);
  const Pool* pool = pool_of(handle);
  if (pool == nullptr || pool->imported || flags != 0 || type != kPosixFd ||
      (pool->handle_types & type) == 0)
    return CUDA_ERROR_INVALID_VALUE;
  const int fd = new_memfd(name_for(kPoolName, pool->ordinal).c_str(), 0);
  if (fd < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  std::memcpy(shareable, &fd, sizeof fd);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool* pool, void* shareable, unsigned type,
                                            unsigned long long flags) {
  const Lock lock(world().mutex);
  const int ordinal =
      named_ordinal(static_cast<int>(reinterpret_cast<std::intptr_t>(shareable)), kPoolName);
  if (ordinal < 0 || type != kPosixFd || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  *pool = add_pool(ordinal, type, true);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData* data, CUdeviceptr address) {
  const Lock lock(world().mutex);
  const Allocation* found = find_allocation(address);
  const Pool* pool = found != nullptr ? pool_of(found->pool) : nullptr;
  if (pool == nullptr || pool->imported || pool->handle_types == 0 || found->base != address)
    return CUDA_ERROR_INVALID_VALUE;
  *data = std::bit_cast<CUmemPoolPtrExportData>(describe_memfd(*found));
  return CUDA_SUCCESS;
}

CUresult cuMemPoolImportPointer(CUdeviceptr* address, CUmemoryPool handle,
                                CUmemPoolPtrExportData* data) {
  const Lock lock(world().mutex);
  Pool* pool = pool_of(handle);
  if (pool == nullptr || !pool->imported) return CUDA_ERROR_INVALID_VALUE;
  std::uint64_t bytes = 0;
  const int fd = open_described(std::bit_cast<CUipcMemHandle>(*data), bytes);
  struct stat facts {};
  if (fd < 0 || fstat(fd, &facts) != 0) return CUDA_ERROR_INVALID_VALUE;
  const Origin origin{.inode = facts.st_ino};
  Allocation* made = nullptr;  // a second import is the first one again
  for (const auto& [at, allocation] : world().allocations)
    if (allocation->kind == Kind::pool && allocation->origin == origin) made = allocation.get();
  if (made != nullptr) {
    pool->access = made->access;
  } else {
    made = map_device(Kind::pool, pool->ordinal, fd, bytes);
    if (made != nullptr) {
      made->pool = handle;
      made->access = pool->access;
      made->origin = origin;
    }
  }
  close(fd);
  if (made == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = made->base;
  return CUDA_SUCCESS;
}

}  // namespace linkspan::cuda::fake
