// tests/support/fake_cuda/controls.hpp - how a test holds, loses and counts in the simulated
// driver.
//
// Beside the driver's own entries its cuGetProcAddress answers the names below, at any version.
// Threads: any thread.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <type_traits>

#include "cuda/driver_abi.hpp"

namespace linkspan::test {

struct FakeCuda {
  /// Returns the calls of an entry ("cuMemcpyAsync") since the last reset; 0 for an unknown name.
  unsigned long long (*call_count)(const char* name) = nullptr;
  /// Counts are 0, nothing is held, and lost devices work again, which no real one would.
  void (*reset)() = nullptr;
  /// Holds or releases a device. The streams of a held device start nothing. Returns when none of
  /// them is running.
  void (*hold)(int ordinal, int hold) = nullptr;
  /// Ends the context: drops what is queued; later calls in it answer 700. Returns when all is
  /// quiet.
  void (*lose)(int ordinal) = nullptr;

  /// Finds the controls without initialising the driver. The members are null if the process runs
  /// another driver.
  static FakeCuda find() {
    FakeCuda found;
    const char* file = std::getenv("LINKSPAN_CUDA_LIBRARY");
    // It stays loaded, because the library's driver table needs it for ever.
    void* library = file != nullptr ? dlopen(file, RTLD_NOW | RTLD_LOCAL) : nullptr;
    if (library == nullptr) return found;
    const auto get = reinterpret_cast<cuda::GetProcAddress>(dlsym(library, "cuGetProcAddress_v2"));
    const auto ask = [get](const char* name, auto& function) {
      void* address = nullptr;
      cuda::CUdriverProcAddressQueryResult status{};
      if (get == nullptr || get(name, &address, 13000, 0, &status) != cuda::CUDA_SUCCESS) return;
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
    };
    ask("fakeCudaCallCount", found.call_count);
    ask("fakeCudaReset", found.reset);
    ask("fakeCudaHold", found.hold);
    ask("fakeCudaLose", found.lose);
    return found;
  }
  explicit operator bool() const noexcept { return lose != nullptr; }
};

/// Holds a device for the length of a scope.
class FakeCudaHold {
 public:
  FakeCudaHold(const FakeCuda& fake, int ordinal) : fake_(fake), ordinal_(ordinal) {
    fake_.hold(ordinal_, 1);
  }
  ~FakeCudaHold() { release(); }
  FakeCudaHold(const FakeCudaHold&) = delete;
  FakeCudaHold& operator=(const FakeCudaHold&) = delete;
  void release() { fake_.hold(ordinal_, 0); }

 private:
  const FakeCuda& fake_;
  int ordinal_;
};

}  // namespace linkspan::test
