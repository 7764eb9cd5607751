// cuda/ipc.hpp - serialises the driver's two calls on IPC handles of other processes.
//
// A handle that one thread opens while another closes it sometimes fails with 208, "already mapped"
// (docs/cuda_notes.md, "handles"). So one mutex is around both calls. An open waits for a closing,
// which waits for what is in flight on its GPU (cuda/deferred_destroyer.hpp).
// Threads: any thread; the context of the GPU is current.
// Invariants: at most one of the calls runs.
#pragma once

#include "cuda/driver.hpp"

namespace linkspan::cuda {

/// Maps the allocation of the handle at `base`.
CUresult open_ipc(const Driver& driver, const CUipcMemHandle& handle, CUdeviceptr& base);
/// Unmaps the allocation. The result is ignored: the call fails only while the process ends.
void close_ipc(const Driver& driver, CUdeviceptr base) noexcept;

}  // namespace linkspan::cuda
