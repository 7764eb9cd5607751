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

template <class T>
cuda::CUresult fill_up(const cuda::Driver& driver, std::vector<T>& spare, std::size_t count) {
  while (spare.size() < count) {
    T fresh = nullptr;
    if (const auto r = make(driver, fresh); r != cuda::CUDA_SUCCESS) return r;
    spare.push_back(fresh);
  }
  return cuda::CUDA_SUCCESS;
}

template <class T>
cuda::CUresult take_from(const cuda::Driver& driver, std::vector<T>& spare, T& taken) {
  if (spare.empty()) return make(driver, taken);
  taken = spare.back();
  spare.pop_back();
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

void Spares::release(int gpu, cuda::CUevent event) {
  const base::MutexLock lock(mutex_);
  if (event != nullptr) of_[gpu].events.push_back(event);
}

void Spares::release(int gpu, cuda::CUstream stream) {
  const base::MutexLock lock(mutex_);
  if (stream != nullptr) of_[gpu].streams.push_back(stream);
}

}  // namespace linkspan::nvlink
