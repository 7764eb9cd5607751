// bench/memory.hpp - memory of a GPU or of the host that a bench fills and verifies.
//
// Threads: externally synchronised.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "cuda/topology.hpp"
#include "tools/linkspan/pair/data.hpp"

namespace linkspan::bench {

/// Owns memory of a GPU, or of the host if no GPU is given.
class Memory {
 public:
  static constexpr std::uint64_t kAlignment = 4096;

  static Result<Memory> create(const cuda::Device* device, std::uint64_t bytes) {
    Memory memory;
    memory.device_ = device;
    memory.bytes_ = bytes;
    if (device == nullptr) {
      memory.host_ = std::make_unique<std::byte[]>(bytes);
      memory.address_ = reinterpret_cast<std::uintptr_t>(memory.host_.get());
      return memory;
    }
    const auto scope = device->enter();
    if (!scope.ok()) return scope.status();
    auto buffer = cuda::DeviceBuffer::create(*scope, bytes + kAlignment);
    if (!buffer.ok()) return buffer.status();
    memory.gpu_.emplace(*std::move(buffer));
    memory.address_ = (memory.gpu_->address() + kAlignment - 1) / kAlignment * kAlignment;
    auto stream = cuda::Stream::create(*scope);
    if (!stream.ok()) return stream.status();
    memory.stream_.emplace(*std::move(stream));
    return memory;
  }

  std::uint64_t address() const noexcept { return address_; }
  std::uint64_t bytes() const noexcept { return bytes_; }
  const cuda::Device* device() const noexcept { return device_; }
  void* at(std::uint64_t offset) const noexcept {
    return reinterpret_cast<void*>(address_ + offset);  // NOLINT(performance-no-int-to-ptr)
  }

  Status fill(std::uint64_t seed) const {
    return each_part([&](std::span<std::byte> part, std::uint64_t at) {
      tool::put_data(part, seed, at);
      return copy(address_ + at, reinterpret_cast<std::uintptr_t>(part.data()), part.size());
    });
  }
  Status verify(std::uint64_t seed) const {
    return each_part([&](std::span<std::byte> part, std::uint64_t at) -> Status {
      if (Status s =
              copy(reinterpret_cast<std::uintptr_t>(part.data()), address_ + at, part.size());
          !s.ok())
        return s;
      if (tool::first_difference(part, seed, at) == 0) return {};
      return {Code::corrupt, Scope::process,
              "other bytes came, from " + std::to_string(at) + " on"};
    });
  }

 private:
  Memory() = default;
  Status each_part(const std::function<Status(std::span<std::byte>, std::uint64_t)>& work) const {
    std::vector<std::byte> part(std::size_t{16} << 20);
    Status status;
    for (std::uint64_t at = 0; at < bytes_ && status.ok(); at += part.size())
      status = work(std::span(part).first(std::min<std::uint64_t>(part.size(), bytes_ - at)), at);
    return status;
  }
  Status copy(std::uint64_t to, std::uint64_t from, std::uint64_t bytes) const {
    if (device_ == nullptr) {
      std::memcpy(reinterpret_cast<void*>(to),                  // NOLINT(performance-no-int-to-ptr)
                  reinterpret_cast<const void*>(from), bytes);  // NOLINT(performance-no-int-to-ptr)
      return {};
    }
    const auto scope = device_->enter();
    if (!scope.ok()) return scope.status();
    if (Status s = stream_->copy(*scope, to, from, bytes); !s.ok()) return s;
    return stream_->synchronize(*scope);
  }

  const cuda::Device* device_ = nullptr;
  std::uint64_t address_ = 0, bytes_ = 0;
  std::unique_ptr<std::byte[]> host_;
  std::optional<cuda::DeviceBuffer> gpu_;
  std::optional<cuda::Stream> stream_;
};

}  // namespace linkspan::bench
