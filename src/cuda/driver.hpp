// cuda/driver.hpp - the CUDA driver as a table of functions, filled once with dlopen.
//
// Nothing in the library links libcuda or libcudart: without a driver there is no table and
// Driver::get() returns the reason. Each entry is requested from cuGetProcAddress at the version
// that fixes its signature (driver_abi.hpp). LINKSPAN_CUDA_LIBRARY names another file than the
// system's driver; tests use it for theirs. Needs a driver of CUDA 12.0 or newer.
// Threads: immutable after the first get(), which any thread may call.
// Invariants: every required entry of a returned table is callable; the library stays loaded until
// the process ends.
#pragma once

#include "cuda/driver_abi.hpp"
#include "linkspan/status.hpp"

namespace linkspan::cuda {

struct Driver {
#define LINKSPAN_MEMBER(name, version, parameters) CUresult(*name) parameters = nullptr;
  LINKSPAN_DRIVER_REQUIRED(LINKSPAN_MEMBER)
  LINKSPAN_DRIVER_OPTIONAL(LINKSPAN_MEMBER)  // null: the driver is too old
#undef LINKSPAN_MEMBER

  /// Returns the process's driver after cuInit, or `unsupported` with the text of the loader or
  /// cuInit. The first call takes up to a second; its answer is kept for the life of the process.
  static Result<const Driver*> get();

  /// Loads any file, as get() does, without keeping the answer. `file` empty or null: the system's
  /// driver. `init`, if not null, receives the result of cuInit if that was called.
  static Result<Driver> load(const char* file, CUresult* init = nullptr);
};

/// Converts a result of the driver: OK for CUDA_SUCCESS, `pending` for CUDA_ERROR_NOT_READY,
/// `unsupported`, `permission_denied` or `busy` for the numbers that say so, else `cuda`. The scope
/// is Scope::process if the context is lost.
Status to_status(const Driver& driver, CUresult result, const char* call, Where at = {});

/// Returns true for errors after which every call on the context fails until the process ends
/// (fact: Loss.AStrayKernelEndsTheContextForGood).
bool loses_context(CUresult result) noexcept;

}  // namespace linkspan::cuda
