// tests/support/driver_shim/counts.hpp - the driver calls of this process, where it runs over the
// counting shim.
//
// Threads: any thread; counts of calls that other threads make meanwhile are in or not.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <map>
#include <string>

namespace linkspan::test {

/// Entries that were called, by name.
using DriverCalls = std::map<std::string, unsigned long long>;

class DriverCounts {
 public:
  /// Finds the counters. The result is false if the process runs over no shim, or has not called
  /// the driver yet.
  static DriverCounts find() {
    DriverCounts found;
    const char* file = std::getenv("LINKSPAN_CUDA_LIBRARY");
    void* library = file != nullptr ? dlopen(file, RTLD_NOW | RTLD_NOLOAD) : nullptr;
    if (library == nullptr) return found;
    found.reset_ = reinterpret_cast<void (*)()>(dlsym(library, "linkspan_shim_reset"));
    found.entry_ = reinterpret_cast<const char* (*)(unsigned, unsigned long long*)>(
        dlsym(library, "linkspan_shim_entry"));
    return found;
  }
  explicit operator bool() const noexcept { return reset_ != nullptr && entry_ != nullptr; }

  void reset() const { reset_(); }
  DriverCalls read() const {
    DriverCalls calls;
    unsigned long long count = 0;
    for (unsigned i = 0; const char* name = entry_(i, &count); ++i)
      if (count != 0) calls[name] = count;
    return calls;
  }

 private:
  void (*reset_)() = nullptr;
  const char* (*entry_)(unsigned, unsigned long long*) = nullptr;
};

}  // namespace linkspan::test
