#include "cuda/kernels.hpp"

#include <string>
#include <utility>

namespace linkspan::cuda {

std::span<const linkspan_image> embedded_images() noexcept {
  return {linkspan_images, linkspan_image_count};
}

const linkspan_image* choose_image(std::span<const linkspan_image> images, int sm) noexcept {
  const linkspan_image* best = nullptr;
  for (const linkspan_image& image : images) {
    const bool suits = image.sm == 0 || (image.sm / 10 == sm / 10 && image.sm <= sm);
    if (suits && (best == nullptr || image.sm > best->sm)) best = &image;
  }
  return best;
}

Result<Kernels> Kernels::load(const DeviceScope& scope, std::span<const linkspan_image> images,
                              int sm) {
  const Driver& driver = scope.driver();
  const linkspan_image* image = choose_image(images, sm);
  if (image == nullptr)
    return Status(Code::unsupported, Scope::transport,
                  "this build has no kernels for sm_" + std::to_string(sm));
  // The driver reads PTX up to a zero, which a string has and an image need not.
  const std::string text(image->begin, image->end);
  CUmodule module = nullptr;
  CUresult r = driver.cuModuleLoadData(&module, text.c_str());
  if (r != CUDA_SUCCESS) return to_status(driver, r, "cuModuleLoadData");
  Kernels kernels(scope, module);
  for (auto [function, name] :
       {std::pair(&kernels.copy_blocks_, "linkspan_copy_blocks"),
        std::pair(&kernels.copy_pages_, "linkspan_copy_pages"),
        std::pair(&kernels.copy_pages_of_pairs_, "linkspan_copy_pages_of_pairs"),
        std::pair(&kernels.copy_captured_, "linkspan_copy_captured"),
        std::pair(&kernels.resident_, "linkspan_resident"),
        std::pair(&kernels.unpack_, "linkspan_unpack")})
    if (Status status = kernels.touch(*function, name); !status.ok()) return status;
  return kernels;
}

/// Loads a function to the GPU: modules load lazily, so a function is there only once requested.
Status Kernels::touch(CUfunction& function, const char* name) const {
  CUresult r = driver_->cuModuleGetFunction(&function, module_, name);
  if (r != CUDA_SUCCESS) return to_status(*driver_, r, name);
  int threads = 0;
  r = driver_->cuFuncGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function);
  if (r != CUDA_SUCCESS) return to_status(*driver_, r, "cuFuncGetAttribute");
  if (driver_->cuFuncLoad == nullptr) return {};  // a driver before 12.4
  r = driver_->cuFuncLoad(function);
  return r == CUDA_SUCCESS ? Status() : to_status(*driver_, r, "cuFuncLoad");
}

Kernels::~Kernels() {
  if (module_ == nullptr) return;
  const Result<DeviceScope> scope = DeviceScope::enter(*driver_, context_);
  if (scope.ok()) driver_->cuModuleUnload(module_);
}

}  // namespace linkspan::cuda
