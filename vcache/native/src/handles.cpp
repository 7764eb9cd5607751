#include "vcache/native/src/handles.hpp"

#include <bit>

#include "cuda/ipc.hpp"

namespace linkspan::nvlink {

OpenHandle::~OpenHandle() {
  if (base_ == 0) return;
  const auto scope = cuda::DeviceScope::enter(driver_, context_);
  if (scope.ok()) cuda::close_ipc(driver_, base_);
  ++HandleCache::only().closes_;
}

cuda::CUresult OpenHandle::open(const Handle& handle) {
  cuda::CUdeviceptr base = 0;
  const auto r = cuda::open_ipc(driver_, std::bit_cast<cuda::CUipcMemHandle>(handle), base);
  if (r != cuda::CUDA_SUCCESS) return r;
  base_ = base;
  ++HandleCache::only().opens_;
  return r;
}

Outcome OpenHandle::measure(const std::string& what) {
  std::size_t bytes = 0;
  const auto r = driver_.cuMemGetAddressRange(nullptr, &bytes, base_);
  bytes_ = bytes;
  return outcome(driver_, r, "cuMemGetAddressRange", what);
}

HandleCache& HandleCache::only() {
  static HandleCache& cache = *new HandleCache;
  return cache;
}

Outcome HandleCache::open(Gpus& gpus, int ordinal, const Handle& handle, const std::string& what,
                          std::shared_ptr<OpenHandle>& mapping) {
  const Key key(ordinal, handle);
  {
    const base::MutexLock lock(mutex_);
    if (const auto found = entries_.find(key); found != entries_.end()) {
      by_use_.splice(by_use_.begin(), by_use_, found->second.place);
      mapping = found->second.mapping;
      ++hits_;
      return {};
    }
  }
  cuda::CUcontext context = nullptr;
  if (Outcome o = gpus.context(ordinal, context); !o.ok()) return o;
  const cuda::Driver& driver = gpus.driver();
  // Shared by the transfer and the cache. Made before the handle is opened, so that without memory
  // no mapping is left.
  const auto fresh = std::make_shared<OpenHandle>(driver, context);
  const auto r = fresh->open(handle);
  // The context is valid: this is its answer to a handle of this process (fact:
  // Handles.TheExporterCannotOpenItsOwn).
  if (r == cuda::CUDA_ERROR_INVALID_CONTEXT) return {};
  if (r == cuda::CUDA_ERROR_INVALID_HANDLE || r == cuda::CUDA_ERROR_INVALID_VALUE)
    return {NVLINK_TRANSFER_INVALID_VALUE, outcome(driver, r, "cuIpcOpenMemHandle", what).text +
                                               ": its exporter is gone, or it is no handle"};
  if (r != cuda::CUDA_SUCCESS) return outcome(driver, r, "cuIpcOpenMemHandle", what);
  if (Outcome o = fresh->measure(what); !o.ok()) return o;
  mapping = fresh;
  std::map<Key, Entry> over;  // ends after the lock
  const base::MutexLock lock(mutex_);
  if (most_ == 0 || entries_.contains(key)) return {};  // another thread was first
  // Nothing has changed if one of these throws.
  std::list<Key> first{key};
  entries_.emplace(key, Entry{fresh, first.begin()});
  by_use_.splice(by_use_.begin(), first);
  over = trim();
  return {};
}

void HandleCache::keep(unsigned most) {
  std::map<Key, Entry> over;
  const base::MutexLock lock(mutex_);
  most_ = most;
  over = trim();
}

unsigned HandleCache::kept() const {
  const base::MutexLock lock(mutex_);
  return static_cast<unsigned>(entries_.size());
}

std::map<HandleCache::Key, HandleCache::Entry> HandleCache::trim() {
  std::map<Key, Entry> over;
  while (entries_.size() > most_) {
    over.insert(entries_.extract(by_use_.back()));
    by_use_.pop_back();
  }
  return over;
}

}  // namespace linkspan::nvlink
