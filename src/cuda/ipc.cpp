#include "cuda/ipc.hpp"

#include "base/mutex.hpp"

namespace linkspan::cuda {
namespace {

/// Returns the mutex, which is never destroyed: mappings may close at the very end.
base::Mutex& one_at_a_time() {
  static base::Mutex& mutex = *new base::Mutex;
  return mutex;
}

}  // namespace

CUresult open_ipc(const Driver& driver, const CUipcMemHandle& handle, CUdeviceptr& base) {
  const base::MutexLock lock(one_at_a_time());
  return driver.cuIpcOpenMemHandle(&base, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

void close_ipc(const Driver& driver, CUdeviceptr base) noexcept {
  const base::MutexLock lock(one_at_a_time());
  driver.cuIpcCloseMemHandle(base);
}

}  // namespace linkspan::cuda
