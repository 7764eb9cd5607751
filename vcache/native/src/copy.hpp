// vcache/native/src/copy.hpp - a checked request, and the copies that carry it out.
//
// Threads: externally synchronised; different objects may be used by different threads.
#pragma once

#include <memory>
#include <optional>

#include "vcache/native/src/handles.hpp"

namespace linkspan::nvlink {

/// One side of a request, as the caller passed it.
struct Side {
  const char* name;  // "source" or "target"
  int gpu;
  std::uint64_t pointer;
  const void* handle;
  unsigned handle_bytes;
  std::uint64_t offset;
};

class Copy {
 public:
  /// Opens the handles and checks all bounds; `bytes` is not 0. Starts no copy.
  static Outcome prepare(Gpus& gpus, const Side& source, const Side& target, std::uint64_t bytes,
                         Copy& copy);

  /// Converts the caller's stream to the driver's. 400: a stream of another GPU. 900: it is
  /// capturing a graph.
  Outcome check_stream(void* stream, cuda::CUstream& handle) const;
  /// Submits at most `most` bytes from `from` on in a stream of the source GPU.
  Outcome submit(std::uint64_t from, std::uint64_t most, cuda::CUstream stream) const;

  /// The opened handles, which close with their last reference. Closing waits for the work in
  /// flight on the GPU (cuda/deferred_destroyer.hpp).
  using Mappings = std::array<std::shared_ptr<OpenHandle>, 2>;
  Mappings take() { return {std::move(source_.mapping), std::move(target_.mapping)}; }

  const cuda::Driver& driver() const noexcept { return gpus_->driver(); }
  Result<cuda::DeviceScope> enter() const {
    return cuda::DeviceScope::enter(driver(), source_.context);
  }
  int source_gpu() const noexcept { return source_.gpu; }
  std::uint64_t bytes() const noexcept { return bytes_; }
  bool staged() const noexcept { return staged_; }
  const std::string& name() const noexcept { return name_; }

 private:
  struct End {
    int gpu = 0;
    cuda::CUcontext context = nullptr;
    std::uint64_t address = 0;
    std::shared_ptr<OpenHandle> mapping{};  // shared with the cache; null: memory of this process
  };
  static Outcome resolve(Gpus& gpus, const Side& side, std::uint64_t bytes, End& end);

  Gpus* gpus_ = nullptr;
  End source_, target_;
  std::uint64_t bytes_ = 0;
  bool staged_ = false;
  std::string name_;  // for texts
};

}  // namespace linkspan::nvlink
