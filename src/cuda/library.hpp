// cuda/library.hpp - opens a shared library by name; the one place of this folder where platforms
// differ.
//
// Libraries are never unloaded: the driver's threads and handlers outlive any owner of ours.
// Threads: any thread.
// Invariants: a handle stays valid until the process ends.
#pragma once

#include "linkspan/status.hpp"

namespace linkspan::cuda {

/// Returns the file name of the system's CUDA driver.
const char* driver_library_name() noexcept;

/// Opens the library; the handle is not null. `unsupported` with the loader's text.
Result<void*> open_library(const char* file);

/// Returns the symbol, or null if the library does not export it.
void* find_symbol(void* library, const char* name) noexcept;

}  // namespace linkspan::cuda
