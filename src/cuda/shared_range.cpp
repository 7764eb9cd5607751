#include "cuda/shared_range.hpp"

#include <bit>
#include <list>
#include <map>
#include <utility>

#include "base/mutex.hpp"
#include "linkspan/types.hpp"

namespace linkspan::cuda {
namespace {

constexpr unsigned kFdType = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

Status not_shareable(const char* what) { return {Code::unsupported, Scope::request, what}; }

void* as_handle(const base::Fd& fd) {
  return reinterpret_cast<void*>(  // NOLINT(performance-no-int-to-ptr): as the driver takes an fd
      static_cast<std::intptr_t>(fd.get()));
}

CUmemAccessDesc read_write(const Device& device) {
  return {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device.info().ordinal},
          .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
}

/// Counts what this process has imported of pools. A second import of an allocation returns the
/// address of the first, and one free ends both (fact: Pools.TwoImportsOfOneAllocation). So the
/// last user frees it, and after that the pools through which it was imported are destroyed.
struct PoolImports {
  struct PoolImport {
    unsigned users = 0;
    std::list<CUmemoryPool> pools;
  };
  using ByBase = std::map<CUdeviceptr, PoolImport>;
  base::Mutex mutex;
  ByBase by_base LINKSPAN_GUARDED_BY(mutex);

  /// Adds an import. `made` has one entry, that of the import, which its first user adds as it is.
  void add(CUdeviceptr base, ByBase made) LINKSPAN_REQUIRES(mutex) {
    auto node = made.extract(made.begin());
    node.key() = base;
    auto done = by_base.insert(std::move(node));
    if (done.inserted) return;
    PoolImport& known = done.position->second;
    ++known.users;
    known.pools.splice(known.pools.end(), done.node.mapped().pools);
  }

  /// Returns the imports, which are never destroyed: mappings may end at the very end.
  static PoolImports& all() {
    static PoolImports& imports = *new PoolImports;
    return imports;
  }
};

CUmemoryPool pool_of(const Driver& driver, std::uint64_t address) {
  CUmemoryPool pool = nullptr;
  const CUresult r =
      driver.cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address);
  return r == CUDA_SUCCESS ? pool : nullptr;
}

}  // namespace

Result<base::Fd> export_chunk(const Device& device, std::uint64_t address) {
  const Driver& driver = device.driver();
  const Result<DeviceScope> scope = device.enter();
  if (!scope.ok()) return scope.status();
  CUmemGenericAllocationHandle handle = 0;
  void* const pointer = reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
  CUresult r = driver.cuMemRetainAllocationHandle(&handle, pointer);
  if (r != CUDA_SUCCESS) return to_status(driver, r, "cuMemRetainAllocationHandle");
  int raw = -1;
  r = driver.cuMemExportToShareableHandle(&raw, handle, kFdType, 0);
  driver.cuMemRelease(handle);
  if (r == CUDA_ERROR_INVALID_VALUE)  // (fact: Chunks.WithoutAHandleTypeOneIsNotExported)
    return not_shareable(
        "its chunks were made by cuMemCreate without CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR: "
        "request that type; PyTorch: TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC=1, or "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False; see docs/memory.md");
  if (r != CUDA_SUCCESS) return to_status(driver, r, "cuMemExportToShareableHandle");
  return base::Fd(raw);
}

Result<base::Fd> export_pool(const Device& device, std::uint64_t base) {
  const Driver& driver = device.driver();
  const Result<DeviceScope> scope = device.enter();
  if (!scope.ok()) return scope.status();
  int raw = -1;
  const CUresult r =
      driver.cuMemPoolExportToShareableHandle(&raw, pool_of(driver, base), kFdType, 0);
  if (r == CUDA_ERROR_INVALID_VALUE)  // (fact: Pools.OnlyThoseWithAHandleTypeAreShared)
    return not_shareable(
        "its pool has no CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR (the default pool of "
        "cudaMallocAsync never has): allocate from a pool of cudaMemPoolCreate with that type, or "
        "by cudaMalloc; PyTorch: leave PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync away; see "
        "docs/memory.md");
  if (r != CUDA_SUCCESS) return to_status(driver, r, "cuMemPoolExportToShareableHandle");
  return base::Fd(raw);
}

Result<PoolPointer> export_pool_pointer(const Device& device, std::uint64_t base) {
  const Driver& driver = device.driver();
  const Result<DeviceScope> scope = device.enter();
  if (!scope.ok()) return scope.status();
  CUmemPoolPtrExportData data{};
  const CUresult r = driver.cuMemPoolExportPointer(&data, base);
  if (r != CUDA_SUCCESS) return to_status(driver, r, "cuMemPoolExportPointer");
  return std::bit_cast<PoolPointer>(data);
}

Status allow_own(const Topology& topology, const Device& device, std::uint64_t address,
                 std::uint64_t bytes) {
  const Driver& driver = device.driver();
  const CUmemAccessDesc access = read_write(device);
  for (const std::uint64_t end = address + bytes; address < end;) {
    const auto facts =
        topology.query(reinterpret_cast<void*>(address));  // NOLINT(performance-no-int-to-ptr)
    if (!facts.ok()) return facts.status();
    if (facts->layout == Layout::whole || facts->gpu == device.info().uuid) return {};
    const Result<DeviceScope> scope = device.enter();
    if (!scope.ok()) return scope.status();
    const CUresult r = facts->layout == Layout::pool
                           ? driver.cuMemPoolSetAccess(pool_of(driver, address), &access, 1)
                           : driver.cuMemSetAccess(facts->base, facts->bytes, &access, 1);
    if (r != CUDA_SUCCESS) return to_status(driver, r, "cuMemSetAccess");
    if (facts->layout == Layout::pool) return {};
    address = facts->base + facts->bytes;
  }
  return {};
}

Result<std::unique_ptr<SharedRange>> SharedRange::reserve(const Device& device,
                                                          std::uint64_t bytes) {
  const Driver& driver = device.driver();
  const Result<DeviceScope> scope = device.enter();
  if (!scope.ok()) return scope.status();
  std::unique_ptr<SharedRange> range(new SharedRange(device));
  CUdeviceptr base = 0;
  const CUresult r = driver.cuMemAddressReserve(&base, bytes, 0, 0, 0);
  if (r != CUDA_SUCCESS) return to_status(driver, r, "cuMemAddressReserve");
  range->base_ = base;
  range->reserved_ = bytes;
  return range;
}

Status SharedRange::add(const base::Fd& chunk, std::uint64_t bytes) {
  if (bytes == 0 || bytes > reserved_ - bytes_)
    return {Code::corrupt, Scope::request, "more chunks of memory than the peer announced"};
  const Driver& driver = device_.driver();
  const Result<DeviceScope> scope = device_.enter();
  if (!scope.ok()) return scope.status();
  CUmemGenericAllocationHandle handle = 0;
  CUresult r = driver.cuMemImportFromShareableHandle(&handle, as_handle(chunk), kFdType);
  if (r != CUDA_SUCCESS) return to_status(driver, r, "cuMemImportFromShareableHandle");
  r = driver.cuMemMap(base_ + bytes_, bytes, 0, handle, 0);
  driver.cuMemRelease(handle);  // the mapping holds it
  if (r != CUDA_SUCCESS) return to_status(driver, r, "cuMemMap");
  bytes_ += bytes;
  return {};
}

Result<std::unique_ptr<SharedRange>> SharedRange::open(const Device& device, const base::Fd& pool,
                                                       const PoolPointer& pointer) {
  const Driver& driver = device.driver();
  const Result<DeviceScope> scope = device.enter();
  if (!scope.ok()) return scope.status();
  std::unique_ptr<SharedRange> range(new SharedRange(device));
  CUresult r =
      driver.cuMemPoolImportFromShareableHandle(&range->pool_, as_handle(pool), kFdType, 0);
  if (r != CUDA_SUCCESS) return to_status(driver, r, "cuMemPoolImportFromShareableHandle");
  auto data = std::bit_cast<CUmemPoolPtrExportData>(pointer);
  CUdeviceptr base = 0;
  // Made before the import, after which nothing may throw before it is counted.
  PoolImports::ByBase made;
  made[0] = {.users = 1, .pools = {range->pool_}};
  {
    PoolImports& imports = PoolImports::all();
    const base::MutexLock lock(imports.mutex);
    r = driver.cuMemPoolImportPointer(&base, range->pool_, &data);
    if (r != CUDA_SUCCESS) return to_status(driver, r, "cuMemPoolImportPointer");
    imports.add(base, std::move(made));
  }
  range->base_ = base;
  CUdeviceptr begin = 0;
  std::size_t bytes = 0;
  r = driver.cuPointerGetAttribute(&begin, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, base);
  if (r == CUDA_SUCCESS)
    r = driver.cuPointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, base);
  if (r != CUDA_SUCCESS) return to_status(driver, r, "cuPointerGetAttribute(RANGE_SIZE)");
  range->bytes_ = begin + bytes - base;
  return range;
}

SharedRange::~SharedRange() {
  const Driver& driver = device_.driver();
  const Result<DeviceScope> scope = device_.enter();
  if (!scope.ok()) return;
  if (pool_ != nullptr) {
    end_import();
    return;
  }
  if (bytes_ != 0) driver.cuMemUnmap(base_, bytes_);
  if (base_ != 0) driver.cuMemAddressFree(base_, reserved_);
}

void SharedRange::end_import() {
  const Driver& driver = device_.driver();
  if (base_ == 0) {
    driver.cuMemPoolDestroy(pool_);
    return;
  }
  PoolImports& imports = PoolImports::all();
  const base::MutexLock lock(imports.mutex);
  const auto import = imports.by_base.find(base_);
  if (--import->second.users != 0) return;
  driver.cuMemFree(base_);
  for (CUmemoryPool pool : import->second.pools) driver.cuMemPoolDestroy(pool);
  imports.by_base.erase(import);
}

Status SharedRange::allow(const Device& device) {
  const Driver& driver = device.driver();
  const Result<DeviceScope> scope = device.enter();
  if (!scope.ok()) return scope.status();
  const CUmemAccessDesc access = read_write(device);
  const CUresult r = pool_ != nullptr ? driver.cuMemPoolSetAccess(pool_, &access, 1)
                                      : driver.cuMemSetAccess(base_, bytes_, &access, 1);
  if (r != CUDA_SUCCESS) return to_status(driver, r, "cuMemSetAccess");
  return {};
}

}  // namespace linkspan::cuda
