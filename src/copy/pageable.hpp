// copy/pageable.hpp - copies between a GPU and pageable host memory, through the driver.
//
// The driver stages such copies itself and may wait inside the call, so they belong to an executor
// of CpuCopier, which keeps one of these.
// Threads: externally synchronised; blocks until the bytes have moved.
#pragma once

#include <span>
#include <vector>

#include "copy/copier.hpp"
#include "cuda/stream.hpp"
#include "cuda/topology.hpp"

namespace linkspan::copy {

class PageableCopies {
 public:
  /// Copies all, or says why not; either way it is quiet on return. `device` outlives this.
  Status copy(const cuda::Device& device, std::span<const Piece> pieces);

 private:
  Result<cuda::Stream*> stream_of(const cuda::Device& device, const cuda::DeviceScope& scope);

  struct Entry {
    const cuda::Device* device;
    cuda::Stream stream;
  };
  std::vector<Entry> streams_;  // one a device, made at its first copy
};

}  // namespace linkspan::copy
