// tests/support/driver_shim/driver_shim.cpp - counts the driver calls of a process, over any
// driver.
//
// A shared object that LINKSPAN_CUDA_LIBRARY puts in the driver's place. It loads the driver that
// LINKSPAN_SHIM_DRIVER names (the system's without it) and hands out its entries; those of the
// library's table go through a thunk that counts. Read by counts.hpp. flip.hpp makes copies wrong.
// Threads: any thread.
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "cuda/driver_abi.hpp"
#include "tests/support/driver_shim/flip.hpp"

#define LINKSPAN_SHIM_EXPORT extern "C" __attribute__((visibility("default")))

namespace linkspan::cuda {
namespace {

/// `Name` tells entries of one signature apart.
template <class Name, class Function>
struct Thunk;
template <class Name, class... Arguments>
struct Thunk<Name, CUresult(Arguments...)> {
  static inline std::atomic<unsigned long long> calls{0};
  static inline std::atomic<CUresult (*)(Arguments...)> real{nullptr};

  static CUresult call(Arguments... arguments) {
    calls.fetch_add(1, std::memory_order_relaxed);
    return real.load(std::memory_order_relaxed)(arguments...);
  }
  static void* wrap(void* function) {
    real = reinterpret_cast<CUresult (*)(Arguments...)>(function);
    return reinterpret_cast<void*>(&call);
  }
};

struct Counted {
  const char* name;
  void* (*wrap)(void* function);
  std::atomic<unsigned long long>& calls;
};

#define LINKSPAN_NAME(name, version, parameters) struct name##Name;
LINKSPAN_DRIVER_REQUIRED(LINKSPAN_NAME)
LINKSPAN_DRIVER_OPTIONAL(LINKSPAN_NAME)
#undef LINKSPAN_NAME

#define LINKSPAN_COUNTED(name, version, parameters)             \
  {#name, &Thunk<struct name##Name, CUresult parameters>::wrap, \
   Thunk<struct name##Name, CUresult parameters>::calls},
const Counted kCounted[] = {LINKSPAN_DRIVER_REQUIRED(LINKSPAN_COUNTED)
                                LINKSPAN_DRIVER_OPTIONAL(LINKSPAN_COUNTED)};
#undef LINKSPAN_COUNTED

/// Null: there is no driver; the library says so in its own words.
GetProcAddress real_look_up() {
  static const GetProcAddress kLookUp = [] {
    const char* file = std::getenv("LINKSPAN_SHIM_DRIVER");
    void* driver = dlopen(file != nullptr ? file : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return driver != nullptr
               ? reinterpret_cast<GetProcAddress>(dlsym(driver, "cuGetProcAddress_v2"))
               : nullptr;
  }();
  return kLookUp;
}

}  // namespace
}  // namespace linkspan::cuda

LINKSPAN_SHIM_EXPORT linkspan::cuda::CUresult cuGetProcAddress_v2(
    const char* symbol, void** function, int version, std::uint64_t flags,
    linkspan::cuda::CUdriverProcAddressQueryResult* status) {
  using namespace linkspan::cuda;  // NOLINT(google-build-using-namespace)
  const GetProcAddress look_up = real_look_up();
  if (look_up == nullptr) return CUDA_ERROR_NOT_FOUND;
  const CUresult result = look_up(symbol, function, version, flags, status);
  if (result != CUDA_SUCCESS || *function == nullptr) return result;
  *function = flipping(look_up, symbol, *function);
  for (const Counted& counted : kCounted)
    if (std::strcmp(counted.name, symbol) == 0) *function = counted.wrap(*function);
  return result;
}

LINKSPAN_SHIM_EXPORT void linkspan_shim_reset() {
  for (const auto& counted : linkspan::cuda::kCounted) counted.calls = 0;
}

/// The i-th entry of the table and its calls since the last reset; null behind the last one.
LINKSPAN_SHIM_EXPORT const char* linkspan_shim_entry(unsigned i, unsigned long long* calls) {
  const auto& all = linkspan::cuda::kCounted;
  if (i >= sizeof all / sizeof all[0]) return nullptr;
  *calls = all[i].calls;
  return all[i].name;
}
