// cuda/kernels.hpp - chooses and loads the library's kernels for one device.
//
// The build embeds one cubin per architecture and one PTX (src/copy/kernels/*.cu). All functions
// are loaded when a device is activated, never later: a function that is loaded lazily does not
// start while another kernel spins on that GPU (docs/cuda_notes.md, "lazy loading").
// Threads: immutable after construction.
// Invariants: the context in which they were loaded outlives them.
#pragma once

#include <span>
#include <utility>

#include "cuda/device_scope.hpp"

extern "C" {
/// One embedded image; `sm` is 90 for a cubin of 9.0 and 0 for PTX.
struct linkspan_image {  // NOLINT(readability-identifier-naming): the generated file's name
  const unsigned char* begin;
  const unsigned char* end;
  int sm;
};
extern const linkspan_image linkspan_images[];
extern const unsigned long linkspan_image_count;  // 0: built without kernels
}

namespace linkspan::cuda {

/// Returns what this build embeds.
std::span<const linkspan_image> embedded_images() noexcept;

/// Returns the cubin of the same major and the highest minor that is not above the device's; else
/// the PTX, which the driver compiles; else null.
const linkspan_image* choose_image(std::span<const linkspan_image> images, int sm) noexcept;

class Kernels {
 public:
  /// Loads the kernels. `unsupported`: no image suits a device of `sm`. Takes up to 0.1 s if PTX is
  /// compiled.
  static Result<Kernels> load(const DeviceScope& scope, std::span<const linkspan_image> images,
                              int sm);

  Kernels(Kernels&& other) noexcept
      : driver_(other.driver_),
        context_(other.context_),
        module_(std::exchange(other.module_, nullptr)),
        copy_blocks_(other.copy_blocks_),
        copy_pages_(other.copy_pages_),
        copy_pages_of_pairs_(other.copy_pages_of_pairs_),
        copy_captured_(other.copy_captured_),
        resident_(other.resident_),
        unpack_(other.unpack_) {}
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;
  Kernels& operator=(Kernels&&) = delete;
  ~Kernels();

  CUfunction copy_blocks() const noexcept { return copy_blocks_; }
  CUfunction copy_pages() const noexcept { return copy_pages_; }
  CUfunction copy_pages_of_pairs() const noexcept { return copy_pages_of_pairs_; }
  CUfunction copy_captured() const noexcept { return copy_captured_; }
  CUfunction resident() const noexcept { return resident_; }
  CUfunction unpack() const noexcept { return unpack_; }

 private:
  Kernels(const DeviceScope& scope, CUmodule module) noexcept
      : driver_(&scope.driver()), context_(scope.context()), module_(module) {}
  Status touch(CUfunction& function, const char* name) const;

  const Driver* driver_;
  CUcontext context_;
  CUmodule module_;  // null only after a move
  CUfunction copy_blocks_ = nullptr, copy_pages_ = nullptr, copy_pages_of_pairs_ = nullptr;
  CUfunction copy_captured_ = nullptr;
  CUfunction resident_ = nullptr, unpack_ = nullptr;
};

}  // namespace linkspan::cuda
