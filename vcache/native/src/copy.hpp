// vcache/native/src/copy.hpp - a request that was checked, and the copies that serve it.
//
// Threads: externally synchronised; different ones from different threads.
#pragma once

#include <memory>
#include <optional>

#include "vcache/native/src/handles.hpp"

namespace linkspan::nvlink {

/// One side as the caller gave it.
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
  /// Opens the handles and checks all bounds; `bytes` is not 0. Nothing is begun.
  static Outcome prepare(Gpus& gpus, const Side& source, const Side& target, std::uint64_t bytes,
                         Copy& copy);

  /// The stream as the driver takes it. 400: another GPU's. 900: it records a graph.
  Outcome check_stream(void* stream, cuda::CUstream& handle) const;
  /// The bytes from `from` on, at most `most`, in that stream of the source GPU.
  Outcome submit(std::uint64_t from, std::uint64_t most, cuda::CUstream stream) const;

  /// What it opened, which is closed with the last who holds it. To close waits for what is in
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
    std::shared_ptr<OpenHandle> mapping{};  // the cache's too; null: this process's memory
  };
  static Outcome resolve(Gpus& gpus, const Side& side, std::uint64_t bytes, End& end);

  Gpus* gpus_ = nullptr;
  End source_, target_;
  std::uint64_t bytes_ = 0;
  bool staged_ = false;
  std::string name_;  // for texts
};

}  // namespace linkspan::nvlink
