// tests/support/fake_cuda/entry.cpp - the one exported symbol, what stands before each function,
// the controls for tests, and the end.
#include <pthread.h>

#include <cstring>

#include "tests/support/fake_cuda/fake_cuda.hpp"

namespace linkspan::cuda::fake {
namespace {

/// May be called before cuInit.
template <auto function>
inline constexpr bool kAnytime = false;
template <>
inline constexpr bool kAnytime<&cuInit> = true;
template <>
inline constexpr bool kAnytime<&cuDriverGetVersion> = true;
template <>
inline constexpr bool kAnytime<&cuGetErrorName> = true;
template <>
inline constexpr bool kAnytime<&cuGetErrorString> = true;

/// Ends captures of other threads, unless the caller's mode is relaxed.
template <auto function>
inline constexpr bool kEndsCaptures = false;
template <>
inline constexpr bool kEndsCaptures<&cuEventQuery> = true;
template <>
inline constexpr bool kEndsCaptures<&cuStreamQuery> = true;
template <>
inline constexpr bool kEndsCaptures<&cuStreamSynchronize> = true;
template <>
inline constexpr bool kEndsCaptures<&cuMemAlloc> = true;
template <>
inline constexpr bool kEndsCaptures<&cuMemHostAlloc> = true;
template <>
inline constexpr bool kEndsCaptures<&cuMemHostRegister> = true;

/// Counts the calls of a function and refuses those outside the driver's life.
template <auto function>
struct Gate;
template <class... Arguments, CUresult (*function)(Arguments...)>
struct Gate<function> {
  static inline std::atomic<unsigned long long> calls{0};

  static CUresult call(Arguments... arguments) {
    calls.fetch_add(1, std::memory_order_relaxed);
    const World& w = world();
    if (w.forked) return CUDA_ERROR_NOT_INITIALIZED;
    if (w.ended) return CUDA_ERROR_DEINITIALIZED;
    if (!kAnytime<function> && !w.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if constexpr (kEndsCaptures<function>)
      if (const CUresult r = refuse_beside_captures(); r != CUDA_SUCCESS) return r;
    return function(arguments...);
  }
};

struct NamedEntry {
  const char* name;
  int version;  // of this signature
  void* function;
  std::atomic<unsigned long long>& calls;
};
#define LINKSPAN_ENTRY(name, version, parameters) \
  {#name, version, reinterpret_cast<void*>(&Gate<&name>::call), Gate<&name>::calls},
const NamedEntry kEntries[] = {LINKSPAN_DRIVER_REQUIRED(LINKSPAN_ENTRY) LINKSPAN_DRIVER_OPTIONAL(
    LINKSPAN_ENTRY) LINKSPAN_GRAPH_ENTRIES(LINKSPAN_ENTRY) LINKSPAN_MEMORY_ENTRIES(LINKSPAN_ENTRY)
                                   LINKSPAN_ENTRY(cuMemGetInfo, 3020, ())};
#undef LINKSPAN_ENTRY

const NamedEntry* find_entry(const char* name) {
  for (const NamedEntry& entry : kEntries)
    if (std::strcmp(entry.name, name) == 0) return &entry;
  return nullptr;
}

unsigned long long call_count(const char* name) {
  const NamedEntry* entry = find_entry(name);
  return entry != nullptr ? entry->calls.load() : 0;
}

void reset() {
  World& w = world();
  if (w.forked) return;
  const Lock lock(w.mutex);
  for (const NamedEntry& entry : kEntries) entry.calls = 0;
  for (const auto& device : w.devices) device->held = device->lost = false;
  w.wake_all();
}

/// Returns when no stream of the device is running or, `drained`, has anything queued.
template <class Change>
void stop_device(int ordinal, bool drained, Change change) {
  World& w = world();
  if (w.forked) return;
  Lock lock(w.mutex);
  if (ordinal < 0 || static_cast<std::size_t>(ordinal) >= w.devices.size()) return;
  Device& device = *w.devices[static_cast<std::size_t>(ordinal)];
  change(device);
  w.wake_all();
  const auto quiet = [&](const Stream& stream) {
    return &stream.device != &device || (!stream.running && !(drained && !stream.entries.empty()));
  };
  w.await(lock, [&] {
    if (w.ended || !(drained || device.held)) return true;
    bool all = true;
    for (const auto& [handle, stream] : w.streams) all = all && quiet(*stream);
    for (const auto& stream : w.retired) all = all && quiet(*stream);
    return all;
  });
}

void hold(int ordinal, int held) {
  stop_device(ordinal, false, [held](Device& device) { device.held = held != 0; });
}

void lose(int ordinal) {
  stop_device(ordinal, true, [](Device& device) { device.lost = true; });
}

/// Stands for nvidia-peermem: finds the memory behind an address for a network card.
int open_locked(std::uint64_t address, std::uint64_t bytes) {
  World& w = world();
  if (w.forked || w.ended) return -1;
  const Lock lock(w.mutex);
  return open_memory(address, bytes);
}

struct Control {
  const char* name;
  void* function;
};
const Control kControls[] = {{"fakeCudaCallCount", reinterpret_cast<void*>(&call_count)},
                             {"fakeCudaReset", reinterpret_cast<void*>(&reset)},
                             {"fakeCudaHold", reinterpret_cast<void*>(&hold)},
                             {"fakeCudaLose", reinterpret_cast<void*>(&lose)},
                             {"fakeCudaOpenMemory", reinterpret_cast<void*>(&open_locked)}};

/// The library is loaded as long as this lives.
struct Lifetime {
  Lifetime() noexcept {
    pthread_atfork(nullptr, nullptr, [] { world().forked = true; });
  }
  Lifetime(const Lifetime&) = delete;
  Lifetime& operator=(const Lifetime&) = delete;
  ~Lifetime() {
    if (world().forked) return;
    end_streams();
    end_user_objects();
  }
};
const Lifetime kLifetime;

}  // namespace
}  // namespace linkspan::cuda::fake

/// Behaves like the real one. A version above the driver's answers 1 and leaves both results
/// unchanged; a version below the entry's answers 0, null and status 2; an unknown name answers 0,
/// null and status 1.
extern "C" __attribute__((visibility("default"))) linkspan::cuda::CUresult cuGetProcAddress_v2(
    const char* symbol, void** function, int version, std::uint64_t,
    linkspan::cuda::CUdriverProcAddressQueryResult* status) {
  using namespace linkspan::cuda;        // NOLINT(google-build-using-namespace)
  using namespace linkspan::cuda::fake;  // NOLINT(google-build-using-namespace)
  CUdriverProcAddressQueryResult ignored{};
  if (status == nullptr) status = &ignored;
  if (version > kDriverVersion) return CUDA_ERROR_INVALID_VALUE;
  *function = nullptr;
  *status = CU_GET_PROC_ADDRESS_SUCCESS;
  for (const Control& control : kControls) {
    if (std::strcmp(control.name, symbol) != 0) continue;
    *function = control.function;
    return CUDA_SUCCESS;
  }
  const NamedEntry* entry = find_entry(symbol);
  if (entry == nullptr) {
    *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_SUCCESS;
  }
  if (version < entry->version) {
    *status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    return CUDA_SUCCESS;
  }
  *function = entry->function;
  return CUDA_SUCCESS;
}
