// cuda/driver.hpp - the CUDA driver as a table of functions, filled once with dlopen.
//
// Nothing in the library links libcuda or libcudart: without a driver there is no table and
// Driver::get() says why. Each entry is asked of cuGetProcAddress at the version that fixes its
// signature (driver_abi.hpp). LINKSPAN_CUDA_LIBRARY names another file than the system's driver;
// so the tests bring their own. Needs a driver of CUDA 12.0 or newer.
// Threads: immutable after the first get(), which any thread may call.
// Invariants: every required entry of a table that was handed out is callable; the library stays
// loaded until the process ends.
#pragma once

#include "cuda/driver_abi.hpp"
#include "linkspan/status.hpp"

namespace linkspan::cuda {

struct Driver {
#define LINKSPAN_MEMBER(name, version, parameters) CUresult(*name) parameters = nullptr;
  LINKSPAN_DRIVER_REQUIRED(LINKSPAN_MEMBER)
  LINKSPAN_DRIVER_OPTIONAL(LINKSPAN_MEMBER)  // null: the driver is too old
#undef LINKSPAN_MEMBER

  /// The process's driver after cuInit, or `unsupported` with the loader's or cuInit's own words.
  /// The first call takes up to a second and settles the answer for the life of the process.
  static Result<const Driver*> get();

  /// What get() does, for any file and without keeping the answer. `file` empty or null: the
  /// system's driver. `init`, if not null and if it came so far: what cuInit answered.
  static Result<Driver> load(const char* file, CUresult* init = nullptr);
};

/// OK for CUDA_SUCCESS, `pending` for CUDA_ERROR_NOT_READY, `unsupported` and `permission_denied`
/// where the driver says so in its number; else `cuda`. Scope::process when the context is lost.
Status to_status(const Driver& driver, CUresult result, const char* call, Where at = {});

/// True for errors after which every call on the context fails until the process ends (fact:
/// Loss.AStrayKernelEndsTheContextForGood).
bool loses_context(CUresult result) noexcept;

}  // namespace linkspan::cuda
