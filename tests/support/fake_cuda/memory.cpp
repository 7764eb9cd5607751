// tests/support/fake_cuda/memory.cpp - allocations of devices and of the host.
//
// All memory of devices lies in one reserved range of addresses, which distinguishes invalid
// pointers from the host's. An allocation is a memfd that is mapped twice: at its device address,
// and at a view that only the streams use.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "tests/support/fake_cuda/fake_cuda.hpp"

namespace linkspan::cuda::fake {
namespace {

using Kind = Allocation::Kind;

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kArenaBytes = std::uint64_t{1} << 38;
/// A CPU that touches device memory faults, as it does with a real GPU.
constexpr int kDeviceProtection = PROT_NONE;
/// The contents of new memory, which is old memory that was freed. The old address faults. A
/// mapping in another process keeps the old contents, as on a real GPU.
constexpr int kPoison = 0xdd;
constexpr std::size_t kPoisonBytes = std::size_t{1} << 20;
constexpr int kReserved = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

constexpr std::uint64_t whole_pages(std::uint64_t bytes) {
  return (bytes + kPage - 1) & ~(kPage - 1);
}

std::byte* pointer(std::uint64_t address) { return reinterpret_cast<std::byte*>(address); }
std::uint64_t address_of(const void* memory) { return reinterpret_cast<std::uint64_t>(memory); }

std::uint64_t arena() {
  static const std::uint64_t base = address_of(
      mmap(nullptr, kArenaBytes, PROT_NONE, kReserved, -1, 0));  // MAP_FAILED: no address fits
  return base;
}
bool in_arena(std::uint64_t address) { return address - arena() < kArenaBytes; }
/// The lower half is for allocations, the upper one for reservations.
constexpr std::uint64_t kHalf = kArenaBytes / 2;

/// Finds room by first fit, so that addresses are reused soon, with a free gap between two
/// allocations. Returns zero if there is no room.
template <class Taken>
std::uint64_t find_room(const Taken& taken, std::uint64_t begin, std::uint64_t bytes,
                        std::uint64_t gap) {
  std::uint64_t at = begin;
  for (auto next = taken.lower_bound(at); next != taken.end(); ++next) {
    if (next->first - begin >= kHalf || next->first - at >= bytes + gap) break;
    at = next->first + (next->second->bytes + gap - 1) / gap * gap + gap;
  }
  return at - begin < kHalf && begin + kHalf - at >= bytes + gap ? at : 0;
}

Allocation* add(Kind kind, int ordinal, std::uint64_t base, std::uint64_t bytes, std::byte* view) {
  const auto made =
      std::make_shared<Allocation>(kind, ordinal, base, bytes, ++world().last_buffer_id, view);
  return (world().allocations[base] = made).get();
}

/// Waits for the device first, as the real one does. Needs no current context.
CUresult free_memory(std::uint64_t base, std::initializer_list<Kind> kinds, CUresult otherwise) {
  Lock lock(world().mutex);
  const Allocation* found = find_allocation(base);
  if (found == nullptr) return otherwise;
  if (found->base != base || std::find(kinds.begin(), kinds.end(), found->kind) == kinds.end())
    return CUDA_ERROR_INVALID_VALUE;
  const AllocationRef keep = world().allocations[base];
  const CUresult r =
      drain_and_hold_up(lock, *world().devices[static_cast<std::size_t>(keep->ordinal)]);
  if (r != CUDA_SUCCESS) return r;
  if (!keep->live) return CUDA_ERROR_INVALID_VALUE;  // another thread was first
  forget(*keep);
  return CUDA_SUCCESS;
}

CUresult allocate_host(Call& call, Kind kind, std::size_t bytes, std::uint64_t* base) {
  if (call.error != CUDA_SUCCESS) return call.error;
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  void* memory =
      mmap(nullptr, whole_pages(bytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *base = address_of(memory);
  add(kind, call.device->ordinal, *base, bytes, static_cast<std::byte*>(memory));
  return CUDA_SUCCESS;
}

}  // namespace

Chunk::~Chunk() { close(fd); }

Reservation::~Reservation() { munmap(view, bytes); }

Allocation::~Allocation() {
  if (kind == Kind::chunk)
    mmap(view, bytes, PROT_NONE, kReserved | MAP_FIXED, -1, 0);
  else if (kind != Kind::registered)
    munmap(view, whole_pages(bytes));
}

int new_memfd(const char* name, std::uint64_t bytes) {
  const int fd = memfd_create(name, MFD_CLOEXEC);
  if (fd >= 0 && ftruncate(fd, static_cast<off_t>(bytes)) == 0) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

std::shared_ptr<Reservation> reserve(std::uint64_t bytes) {
  constexpr std::uint64_t kAligned = std::uint64_t{2} << 20;
  const std::uint64_t begin = (arena() + kHalf + kAligned - 1) & ~(kAligned - 1);
  const std::uint64_t base = find_room(world().reservations, begin, bytes, kAligned);
  if (base == 0 || !in_arena(base + bytes)) return nullptr;
  void* view = mmap(nullptr, bytes, PROT_NONE, kReserved, -1, 0);
  if (view == MAP_FAILED) return nullptr;
  return world().reservations[base] =
             std::make_shared<Reservation>(base, bytes, static_cast<std::byte*>(view));
}

Allocation* map_chunk(const std::shared_ptr<Reservation>& in, std::uint64_t at,
                      const std::shared_ptr<Chunk>& chunk, std::uint64_t bytes) {
  std::byte* const view = in->view + (at - in->base);
  const int flags = MAP_SHARED | MAP_FIXED;
  if (mmap(view, bytes, PROT_READ | PROT_WRITE, flags, chunk->fd, 0) == MAP_FAILED ||
      mmap(pointer(at), bytes, kDeviceProtection, flags, chunk->fd, 0) == MAP_FAILED)
    return nullptr;
  Allocation* made = add(Kind::chunk, chunk->ordinal, at, bytes, view);
  made->access = std::make_shared<std::set<int>>();
  made->chunk = chunk;
  made->reservation = in;
  return made;
}

Allocation* map_device(Allocation::Kind kind, int ordinal, int fd, std::uint64_t bytes) {
  const std::uint64_t length = whole_pages(bytes);
  const std::uint64_t base = find_room(world().allocations, arena(), length, kPage);
  if (base == 0) return nullptr;
  void* view = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (view == MAP_FAILED) return nullptr;
  if (mmap(pointer(base), length, kDeviceProtection, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
    munmap(view, length);
    return nullptr;
  }
  return add(kind, ordinal, base, bytes, static_cast<std::byte*>(view));
}

void forget(Allocation& allocation) {
  allocation.live = false;
  if (in_arena(allocation.base))
    mmap(pointer(allocation.base), whole_pages(allocation.bytes), PROT_NONE, kReserved | MAP_FIXED,
         -1, 0);
  if (allocation.fd >= 0) close(allocation.fd);
  world().allocations.erase(allocation.base);
}

Allocation* find_allocation(std::uint64_t address) {
  const auto& allocations = world().allocations;
  auto found = allocations.upper_bound(address);
  if (found == allocations.begin()) return nullptr;
  --found;
  return address - found->first < found->second->bytes ? found->second.get() : nullptr;
}

std::optional<Range> range(std::uint64_t address, std::uint64_t bytes) {
  const Allocation* found = find_allocation(address);
  if (found == nullptr)
    return in_arena(address) ? std::nullopt : std::optional(Range{nullptr, pointer(address)});
  Range all{world().allocations[found->base], found->see(address)};
  while (bytes > found->bytes - (address - found->base)) {
    const Allocation* const before = found;
    bytes -= found->bytes - (address - found->base);
    address = found->base + found->bytes;
    found = find_allocation(address);
    if (found == nullptr || found->reservation != before->reservation ||
        before->reservation == nullptr)
      return std::nullopt;
    all.more.push_back(world().allocations[found->base]);
  }
  return all;
}

bool accessible(const Device& device, const Range& range) {
  return range.all([&](const Allocation& each) {
    return each.access == nullptr || each.access->contains(device.ordinal);
  });
}

std::optional<Range> kernel_range(const Device& device, std::uint64_t address,
                                  std::uint64_t bytes) {
  auto found = range(address, bytes);
  if (!found || !found->owner) return std::nullopt;
  if (found->owner->access != nullptr) return accessible(device, *found) ? found : std::nullopt;
  const bool remote = found->owner->on_device() && found->owner->ordinal != device.ordinal;
  return remote && !device.peers.contains(found->owner->ordinal) ? std::nullopt : found;
}

CUresult cuMemAlloc(CUdeviceptr* address, std::size_t bytes) {
  Call call;
  if (call.error != CUDA_SUCCESS) return call.error;
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > kDeviceBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  const int fd = new_memfd("fake_cuda", bytes);
  Allocation* made = nullptr;
  if (fd >= 0) made = map_device(Kind::device, call.device->ordinal, fd, bytes);
  if (made == nullptr) {
    if (fd >= 0) close(fd);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  made->fd = fd;
  std::memset(made->view, kPoison, std::min(bytes, kPoisonBytes));
  *address = made->base;
  return CUDA_SUCCESS;
}

CUresult cuMemGetInfo(std::size_t* free, std::size_t* total) {
  Call call;
  if (call.error != CUDA_SUCCESS) return call.error;
  *free = *total = kDeviceBytes;
  for (const auto& [base, allocation] : world().allocations)
    if (allocation->on_device() && allocation->ordinal == call.device->ordinal)
      *free -= whole_pages(allocation->bytes);
  return CUDA_SUCCESS;
}

CUresult cuMemFree(CUdeviceptr address) {
  return free_memory(address, {Kind::device, Kind::managed, Kind::pool}, CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemAllocManaged(CUdeviceptr* address, std::size_t bytes, unsigned flags) {
  Call call;
  if (call.error != CUDA_SUCCESS) return call.error;
  if (bytes == 0 || flags == 0) return CUDA_ERROR_INVALID_VALUE;
  std::uint64_t base = 0;
  const CUresult r = allocate_host(call, Kind::managed, bytes, &base);
  if (r == CUDA_SUCCESS) *address = base;
  return r;
}

CUresult cuMemHostAlloc(void** memory, std::size_t bytes, unsigned) {
  Call call;
  if (call.error != CUDA_SUCCESS) return call.error;
  *memory = nullptr;
  if (bytes == 0) return CUDA_SUCCESS;
  std::uint64_t base = 0;
  const CUresult r = allocate_host(call, Kind::pinned, bytes, &base);
  if (r == CUDA_SUCCESS) *memory = pointer(base);
  return r;
}

CUresult cuMemFreeHost(void* memory) {
  return free_memory(address_of(memory), {Kind::pinned}, CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemHostRegister(void* memory, std::size_t bytes, unsigned) {
  Call call;
  if (call.error != CUDA_SUCCESS) return call.error;
  const std::uint64_t base = address_of(memory), end = base + bytes;
  if (bytes == 0 || end < base) return CUDA_ERROR_INVALID_VALUE;
  const Allocation* overlapped = find_allocation(base);
  const auto next = world().allocations.lower_bound(base);
  if (overlapped == nullptr && next != world().allocations.end() && next->first < end)
    overlapped = next->second.get();
  if (overlapped != nullptr)
    return overlapped->kind == Kind::registered ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
                                                : CUDA_ERROR_INVALID_VALUE;
  // Fails for what is not mapped, and does nothing.
  const std::uint64_t first_page = base & ~(kPage - 1);
  if (in_arena(base) || msync(pointer(first_page), end - first_page, MS_ASYNC) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  add(Kind::registered, call.device->ordinal, base, bytes, static_cast<std::byte*>(memory));
  return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void* memory) {
  return free_memory(address_of(memory), {Kind::registered}, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr* address, void* memory, unsigned flags) {
  Call call;
  if (call.error != CUDA_SUCCESS) return call.error;
  const Allocation* found = find_allocation(address_of(memory));
  if (flags != 0 || found == nullptr || !found->on_host()) return CUDA_ERROR_INVALID_VALUE;
  *address = address_of(memory);
  return CUDA_SUCCESS;
}

}  // namespace linkspan::cuda::fake
