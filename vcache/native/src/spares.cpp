#include "vcache/native/src/spares.hpp"

namespace linkspan::nvlink {
namespace {

// created for a GPU at first: enough for all that run at once
constexpr std::size_t kEvents = 256, kStreams = 16;

cuda::CUresult make(const cuda::Driver& driver, cuda::CUevent& event) {
  return driver.cuEventCreate(&event, cuda::CU_EVENT_DISABLE_TIMING);
}

cuda::CUresult make(const cuda::Driver& driver, cuda::CUstream& stream) {
  return driver.cuStreamCreateWithPriority(&stream, cuda::CU_STREAM_NON_BLOCKING, 0);
}

template <class Pool, class T>
cuda::CUresult create(const cuda::Driver& driver, Pool& pool, T& fresh) {
  pool.spare.reserve(pool.created + 1);  // first, because it may throw
  const auto r = make(driver, fresh);
  if (r == cuda::CUDA_SUCCESS) ++pool.created;
  return r;
}

template <class Pool>
cuda::CUresult fill_up(const cuda::Driver& driver, Pool& pool, std::size_t count) {
  pool.spare.reserve(count);
  while (pool.spare.size() < count) {
    typename decltype(pool.spare)::value_type fresh = nullptr;
    if (const auto r = create(driver, pool, fresh); r != cuda::CUDA_SUCCESS) return r;
    pool.spare.push_back(fresh);
  }
  return cuda::CUDA_SUCCESS;
}

template <class Pool, class T>
cuda::CUresult take_from(const cuda::Driver& driver, Pool& pool, T& taken) {
  if (pool.spare.empty()) return create(driver, pool, taken);
  taken = pool.spare.back();
  pool.spare.pop_back();
  return cuda::CUDA_SUCCESS;
}

}  // namespace

Spares& Spares::only() {
  static Spares& spares = *new Spares;
  return spares;
}

cuda::CUresult Spares::fill(const cuda::Driver& driver, Of& of) {
  const auto r = fill_up(driver, of.events, kEvents);
  return r != cuda::CUDA_SUCCESS ? r : fill_up(driver, of.streams, kStreams);
}

cuda::CUresult Spares::take(const cuda::Driver& driver, int gpu, cuda::CUevent& event) {
  const base::MutexLock lock(mutex_);
  const auto [of, first] = of_.try_emplace(gpu);
  if (first)
    if (const auto r = fill(driver, of->second); r != cuda::CUDA_SUCCESS) return r;
  return take_from(driver, of->second.events, event);
}

cuda::CUresult Spares::take(const cuda::Driver& driver, int gpu, cuda::CUstream& stream) {
  const base::MutexLock lock(mutex_);
  return take_from(driver, of_[gpu].streams, stream);
}

void Spares::release(int gpu, cuda::CUevent event) noexcept {
  const base::MutexLock lock(mutex_);
  of_.find(gpu)->second.events.spare.push_back(event);
}

void Spares::release(int gpu, cuda::CUstream stream) noexcept {
  const base::MutexLock lock(mutex_);
  of_.find(gpu)->second.streams.spare.push_back(stream);
}

}  // namespace linkspan::nvlink
