// bench/bare/ping.hpp - the least that a copy into a peer's hands can cost: the ceiling of a write
// with a notification.
//
// A copy into the other process's memory, behind it a WriteValue of a word in memory that both
// processes have mapped and registered; the other spins on that word and answers in the same way.
// Threads: externally synchronised.
// Invariants: the Device outlives it, and both sides are made before either sends.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "bench/bare/end_word.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "cuda/topology.hpp"

namespace linkspan::bare {

class Ping {
 public:
  static constexpr std::uint64_t kPageBytes = 4096;  ///< Of the memory of both.

  /// `memory`: kPageBytes bytes of zeros, mapped here for as long as this lives; `side` 0 or 1 of
  /// them is ours.
  static Result<std::unique_ptr<Ping>> create(const cuda::Device& device, std::byte* memory,
                                              unsigned side);

  /// Sends, and waits for the answer: half of the time from the call to the answer seen.
  Result<Duration> round(cuda::CUdeviceptr to, cuda::CUdeviceptr from, std::uint64_t bytes,
                         Duration limit);
  /// Waits for one, and answers it.
  Status answer(cuda::CUdeviceptr to, cuda::CUdeviceptr from, std::uint64_t bytes, Duration limit);

 private:
  Ping(const cuda::Device& device, cuda::Stream stream, cuda::HostRegistration memory,
       unsigned side)
      : device_(device), stream_(std::move(stream)), memory_(std::move(memory)), side_(side) {}

  Status send(const cuda::DeviceScope& scope, cuda::CUdeviceptr to, cuda::CUdeviceptr from,
              std::uint64_t bytes);
  const std::uint64_t* ours() const noexcept;

  const cuda::Device& device_;
  cuda::Stream stream_;
  cuda::HostRegistration memory_;
  const unsigned side_;
  std::uint64_t sent_ = 0;
};

}  // namespace linkspan::bare
