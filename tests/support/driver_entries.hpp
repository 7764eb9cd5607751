// tests/support/driver_entries.hpp - entries and errors of the driver that tests use and the
// library does not.
//
// They belong to the driver that the library uses, which stays loaded for the library's table.
// Threads: any thread.
#pragma once

#include <dlfcn.h>

#include <cstdlib>

#include "cuda/driver_abi.hpp"
#include "cuda/library.hpp"

namespace linkspan::cuda {

inline constexpr CUresult CUDA_ERROR_STREAM_CAPTURE_UNJOINED{904};
inline constexpr CUresult CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD{908};

/// Returns the entry; null if there is no driver, or it has no such entry.
inline void* driver_entry(const char* name, int version) {
  const char* file = std::getenv("LINKSPAN_CUDA_LIBRARY");
  void* library = dlopen(file != nullptr ? file : driver_library_name(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  const auto get = reinterpret_cast<GetProcAddress>(dlsym(library, "cuGetProcAddress_v2"));
  void* address = nullptr;
  CUdriverProcAddressQueryResult status{};
  if (get == nullptr ||
      get(name, &address, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status) != CUDA_SUCCESS)
    return nullptr;
  return address;
}

}  // namespace linkspan::cuda
