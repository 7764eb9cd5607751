// cuda/library.hpp - a shared library by name: the one place where platforms differ in this folder.
//
// Libraries are never unloaded: the driver's threads and handlers outlive any owner of ours.
// Threads: any thread.
#pragma once

#include "linkspan/status.hpp"

namespace linkspan::cuda {

/// The file name under which the system's CUDA driver is found.
const char* driver_library_name() noexcept;

/// Not null. `unsupported` with the loader's own words.
Result<void*> open_library(const char* file);

/// Null: it exports no such symbol.
void* find_symbol(void* library, const char* name) noexcept;

}  // namespace linkspan::cuda
