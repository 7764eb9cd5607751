// tests/support/driver_shim/driver_shim.cpp - counts the driver calls of a process, over any
// driver, and executes a test's orders on them.
//
// LINKSPAN_CUDA_LIBRARY puts this shared object in the driver's place. It loads the driver that
// LINKSPAN_SHIM_DRIVER names (the system's without it) and returns its entries. Those of the
// library's table go through a thunk that counts the call (counts.hpp), applies orders (rules.hpp,
// given by control.hpp) and counts created and destroyed objects (balance.hpp). flip.hpp makes
// copies wrong.
// Threads: any thread.
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>

#include "cuda/driver_abi.hpp"
#include "tests/support/driver_shim/balance.hpp"
#include "tests/support/driver_shim/flip.hpp"
#include "tests/support/driver_shim/rules.hpp"

#define LINKSPAN_SHIM_EXPORT extern "C" __attribute__((visibility("default")))

namespace linkspan::cuda {
namespace {

/// `Name` distinguishes entries of one signature.
template <class Name, class Function>
struct Thunk;
template <class Name, class... Arguments>
struct Thunk<Name, CUresult(Arguments...)> {
  static inline std::atomic<unsigned long long> calls{0};
  static inline std::atomic<CUresult (*)(Arguments...)> real{nullptr};
  static inline std::atomic<const char*> entry{nullptr};
  static inline std::atomic<const shim::Account*> account{nullptr};  // null: it makes nothing

  static CUresult call(Arguments... arguments) {
    calls.fetch_add(1, std::memory_order_relaxed);
    const CUresult ordered = shim::meet(entry.load(std::memory_order_relaxed));
    const CUresult r =
        ordered != CUDA_SUCCESS ? ordered : real.load(std::memory_order_relaxed)(arguments...);
    const shim::Account* const kept = account.load(std::memory_order_relaxed);
    if (kept != nullptr && !shim::is_own() && (ordered != CUDA_SUCCESS || r == CUDA_SUCCESS))
      shim::settle(*kept, ordered != CUDA_SUCCESS);
    return r;
  }
  static void* wrap(const char* name, void* function) {
    entry = name;
    account = shim::account_of(name);
    real = reinterpret_cast<CUresult (*)(Arguments...)>(function);
    return reinterpret_cast<void*>(&call);
  }
};

struct Counted {
  const char* name;
  void* (*wrap)(const char* name, void* function);
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

/// Returns the real driver's look-up; null if there is no driver, which the library reports itself.
GetProcAddress real_look_up() {
  static const GetProcAddress kLookUp = [] {
    const char* file = std::getenv("LINKSPAN_SHIM_DRIVER");
    shim::order_from_environment();
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
  if (std::strcmp(symbol, "cuCtxGetCurrent") == 0)
    shim::ask_for_context(reinterpret_cast<shim::CurrentContext>(*function));
  *function = flipping(look_up, symbol, *function);
  for (const Counted& counted : kCounted)
    if (std::strcmp(counted.name, symbol) == 0) *function = counted.wrap(counted.name, *function);
  return result;
}

LINKSPAN_SHIM_EXPORT void linkspan_shim_reset() {
  for (const auto& counted : linkspan::cuda::kCounted) counted.calls = 0;
}

/// Returns the i-th entry of the table and its calls since the last reset; null after the last one.
LINKSPAN_SHIM_EXPORT const char* linkspan_shim_entry(unsigned i, unsigned long long* calls) {
  const auto& all = linkspan::cuda::kCounted;
  if (i >= sizeof all / sizeof all[0]) return nullptr;
  *calls = all[i].calls;
  return all[i].name;
}

// ---- control.hpp ----------------------------------------------------------------------------

namespace {
/// Copies as much of `text` as fits to `into`. Returns the length of `text`.
unsigned put(const std::string& text, char* into, unsigned bytes) {
  if (into != nullptr) text.copy(into, bytes);
  return static_cast<unsigned>(text.size());
}
}  // namespace

/// Executes an order. Returns zero if it is not valid.
LINKSPAN_SHIM_EXPORT int linkspan_shim_order(const char* text) {
  return linkspan::cuda::shim::order(text) ? 1 : 0;
}
LINKSPAN_SHIM_EXPORT void linkspan_shim_own(int own) { linkspan::cuda::shim::set_own(own != 0); }
LINKSPAN_SHIM_EXPORT unsigned linkspan_shim_struck(char* into, unsigned bytes) {
  return put(linkspan::cuda::shim::struck(), into, bytes);
}
LINKSPAN_SHIM_EXPORT unsigned linkspan_shim_forbidden(char* into, unsigned bytes) {
  return put(linkspan::cuda::shim::forbidden(), into, bytes);
}
LINKSPAN_SHIM_EXPORT const char* linkspan_shim_traced(unsigned long long i) {
  return linkspan::cuda::shim::traced(i);
}
LINKSPAN_SHIM_EXPORT const char* linkspan_shim_balance(unsigned i, long long* count) {
  return linkspan::cuda::shim::balance(i, count);
}
