#include "vcache/native/src/gpus.hpp"

#include "base/environment.hpp"

namespace linkspan::nvlink {

Gpus* Gpus::get(Outcome& why) {
  struct Found {
    Outcome why{};
    Gpus* gpus = nullptr;
  };
  static const Found& found = *[] {
    auto* const all = new Found;
    cuda::CUresult init = cuda::CUDA_SUCCESS;
    const auto driver = cuda::Driver::load(base::environment("LINKSPAN_CUDA_LIBRARY"), &init);
    int count = 0;
    if (driver.ok() && (*driver).cuDeviceGetCount(&count) == cuda::CUDA_SUCCESS && count > 0) {
      all->gpus = new Gpus(*driver, count);
    } else if (driver.ok() || init == cuda::CUDA_ERROR_NO_DEVICE) {
      all->why = {NVLINK_TRANSFER_NO_DEVICE,
                  "no GPU is visible to this process: look at CUDA_VISIBLE_DEVICES and nvidia-smi"};
    } else {
      all->why = {init != cuda::CUDA_SUCCESS ? static_cast<int>(init) : NVLINK_TRANSFER_NO_DRIVER,
                  driver.status().what()};
    }
    return all;
  }();
  if (found.gpus == nullptr) why = found.why;
  return found.gpus;
}

Outcome Gpus::context(int ordinal, cuda::CUcontext& context) {
  if (ordinal < 0 || ordinal >= count_)
    return {NVLINK_TRANSFER_INVALID_DEVICE, "GPU " + std::to_string(ordinal) +
                                                ": this process sees " + std::to_string(count_) +
                                                " GPUs, from 0 on"};
  const base::MutexLock lock(mutex_);
  contexts_.resize(static_cast<std::size_t>(count_));
  cuda::CUcontext& known = contexts_[static_cast<std::size_t>(ordinal)];
  if (known == nullptr) {
    cuda::CUdevice device = 0;
    const std::string what = "GPU " + std::to_string(ordinal);
    if (const auto r = driver_.cuDeviceGet(&device, ordinal); r != cuda::CUDA_SUCCESS)
      return outcome(driver_, r, "cuDeviceGet", what);
    const auto scope = cuda::DeviceScope::without_context(driver_);
    if (!scope.ok()) return {NVLINK_TRANSFER_FAILED, what + ": " + scope.status().what()};
    cuda::CUcontext fresh = nullptr;
    if (const auto r = driver_.cuDevicePrimaryCtxRetain(&fresh, device); r != cuda::CUDA_SUCCESS)
      return outcome(driver_, r, "cuDevicePrimaryCtxRetain", what);
    known = fresh;
  }
  context = known;
  return {};
}

bool Gpus::staged(int from, int to) {
  if (from == to) return false;
  const std::pair pair(from, to);
  {
    const base::MutexLock lock(mutex_);
    if (direct_.contains(pair)) return false;
    if (staged_.contains(pair)) return true;
    int can = 0;
    if (driver_.cuDeviceCanAccessPeer(&can, from, to) == cuda::CUDA_SUCCESS && can != 0) {
      direct_.insert(pair);
      return false;
    }
    staged_.insert(pair);
  }
  const std::string text = "GPU " + std::to_string(from) + " and GPU " + std::to_string(to) +
                           " have no peer access: the driver stages copies through host memory";
  log(Level::warning, text.c_str());
  return true;
}

}  // namespace linkspan::nvlink
