// tests/support/memory_entries.hpp - virtual memory management and stream-ordered pools, as
// PyTorch's expandable segments and cudaMallocAsync use them.
//
// tests/abi/driver_abi_check.cpp holds them against cuda.h.
// Threads: any thread.
#pragma once

#include <type_traits>

#include "tests/support/driver_entries.hpp"

namespace linkspan::cuda {

struct OpaqueMemoryPool;
using CUmemoryPool = OpaqueMemoryPool*;

struct CUmemLocation {
  unsigned type;  // 1: a device
  int id;
};
struct CUmemAllocationProp {
  unsigned type;                  // 1: pinned, the only one
  unsigned requestedHandleTypes;  // 0: none; 1: POSIX file descriptors
  CUmemLocation location;
  void* win32HandleMetaData;
  unsigned char allocFlags[8];
};
struct CUmemAccessDesc {
  CUmemLocation location;
  unsigned flags;  // 3: read and write
};
struct CUmemPoolProps {
  unsigned allocType, handleTypes;  // as above
  CUmemLocation location;
  void* win32SecurityAttributes;
  std::size_t maxSize;
  unsigned char reserved[56];
};
struct CUmemPoolPtrExportData {
  unsigned char reserved[64];
};
inline constexpr unsigned kPosixFd = 1;

}  // namespace linkspan::cuda

// X(name, version, parameters), as in cuda/driver_abi.hpp.
#define LINKSPAN_MEMORY_ENTRIES(X)                                                              \
  X(cuMemCreate, 10020,                                                                         \
    (CUmemGenericAllocationHandle * handle, std::size_t bytes, const CUmemAllocationProp* prop, \
     unsigned long long flags))                                                                 \
  X(cuMemAddressReserve, 10020,                                                                 \
    (CUdeviceptr * address, std::size_t bytes, std::size_t alignment, CUdeviceptr wish,         \
     unsigned long long flags))                                                                 \
  X(cuMemAddressFree, 10020, (CUdeviceptr address, std::size_t bytes))                          \
  X(cuMemMap, 10020,                                                                            \
    (CUdeviceptr address, std::size_t bytes, std::size_t offset,                                \
     CUmemGenericAllocationHandle handle, unsigned long long flags))                            \
  X(cuMemUnmap, 10020, (CUdeviceptr address, std::size_t bytes))                                \
  X(cuMemSetAccess, 10020,                                                                      \
    (CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* access, std::size_t count)) \
  X(cuMemExportToShareableHandle, 10020,                                                        \
    (void* shareable, CUmemGenericAllocationHandle handle, unsigned type,                       \
     unsigned long long flags))                                                                 \
  X(cuMemImportFromShareableHandle, 10020,                                                      \
    (CUmemGenericAllocationHandle * handle, void* shareable, unsigned type))                    \
  X(cuMemPoolCreate, 11020, (CUmemoryPool * pool, const CUmemPoolProps* props))                 \
  X(cuMemPoolDestroy, 11020, (CUmemoryPool pool))                                               \
  X(cuMemAllocFromPoolAsync, 11020,                                                             \
    (CUdeviceptr * address, std::size_t bytes, CUmemoryPool pool, CUstream stream))             \
  X(cuMemFreeAsync, 11020, (CUdeviceptr address, CUstream stream))                              \
  X(cuMemPoolExportToShareableHandle, 11020,                                                    \
    (void* shareable, CUmemoryPool pool, unsigned type, unsigned long long flags))              \
  X(cuMemPoolExportPointer, 11020, (CUmemPoolPtrExportData * data, CUdeviceptr address))

namespace linkspan::cuda {

struct MemoryEntries {
#define LINKSPAN_MEMBER(name, version, parameters) CUresult(*name) parameters = nullptr;
  LINKSPAN_MEMORY_ENTRIES(LINKSPAN_MEMBER)
#undef LINKSPAN_MEMBER

  /// Null members: the driver has none.
  static MemoryEntries find() {
    MemoryEntries found;
#define LINKSPAN_ASK(name, version, parameters) \
  found.name = reinterpret_cast<decltype(found.name)>(driver_entry(#name, version));
    LINKSPAN_MEMORY_ENTRIES(LINKSPAN_ASK)
#undef LINKSPAN_ASK
    return found;
  }
  explicit operator bool() const noexcept { return cuMemPoolExportPointer != nullptr; }
};

}  // namespace linkspan::cuda
