// cuda/ipc.hpp - the driver's two calls on handles of other processes' memory, one at a time.
//
// A handle that is opened in one thread while another closes it answers 208, "already mapped", now
// and then (docs/cuda_notes.md, "handles"). So one mutex is around both; who opens waits for a
// closing, which waits for what is in flight on its GPU (cuda/deferred_destroyer.hpp).
// Threads: any thread; the context of the GPU is current.
#pragma once

#include "cuda/driver.hpp"

namespace linkspan::cuda {

CUresult open_ipc(const Driver& driver, const CUipcMemHandle& handle, CUdeviceptr& base);
/// An answer is nobody's: it fails only when the process is ending.
void close_ipc(const Driver& driver, CUdeviceptr base) noexcept;

}  // namespace linkspan::cuda
