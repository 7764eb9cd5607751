// tests/support/memory_entries.hpp - how chunks of virtual memory and stream-ordered pools are
// made, as PyTorch's expandable segments and cudaMallocAsync do; what the library calls is in its
// table.
//
// tests/abi/driver_abi_check.cpp holds them against cuda.h.
// Threads: any thread.
#pragma once

#include <type_traits>

#include "tests/support/driver_entries.hpp"

namespace linkspan::cuda {

struct CUmemAllocationProp {
  unsigned type;                  // 1: pinned, the only one
  unsigned requestedHandleTypes;  // 0: none; 1: POSIX file descriptors
  CUmemLocation location;
  void* win32HandleMetaData;
  unsigned char allocFlags[8];
};
struct CUmemPoolProps {
  unsigned allocType, handleTypes;  // as above
  CUmemLocation location;
  void* win32SecurityAttributes;
  std::size_t maxSize;
  unsigned char reserved[56];
};
inline constexpr unsigned kPosixFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

}  // namespace linkspan::cuda

// X(name, version, parameters), as in cuda/driver_abi.hpp.
#define LINKSPAN_MEMORY_ENTRIES(X)                                                              \
  X(cuMemCreate, 10020,                                                                         \
    (CUmemGenericAllocationHandle * handle, std::size_t bytes, const CUmemAllocationProp* prop, \
     unsigned long long flags))                                                                 \
  X(cuMemPoolCreate, 11020, (CUmemoryPool * pool, const CUmemPoolProps* props))                 \
  X(cuMemAllocFromPoolAsync, 11020,                                                             \
    (CUdeviceptr * address, std::size_t bytes, CUmemoryPool pool, CUstream stream))             \
  X(cuMemFreeAsync, 11020, (CUdeviceptr address, CUstream stream))

namespace linkspan::cuda {

struct MemoryEntries {
#define LINKSPAN_MEMBER(name, version, parameters) CUresult(*name) parameters = nullptr;
  LINKSPAN_MEMORY_ENTRIES(LINKSPAN_MEMBER)
#undef LINKSPAN_MEMBER

  /// Finds the entries. The members are null if the driver has none.
  static MemoryEntries find() {
    MemoryEntries found;
#define LINKSPAN_ASK(name, version, parameters) \
  found.name = reinterpret_cast<decltype(found.name)>(driver_entry(#name, version));
    LINKSPAN_MEMORY_ENTRIES(LINKSPAN_ASK)
#undef LINKSPAN_ASK
    return found;
  }
  explicit operator bool() const noexcept { return cuMemFreeAsync != nullptr; }
};

}  // namespace linkspan::cuda
