// bench/bare/end_word.hpp - a word of pinned memory that a stream writes and the host spins on.
//
// Threads: externally synchronised.
#pragma once

#include <chrono>
#include <cstdint>
#include <utility>

#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "linkspan/status.hpp"
#include "linkspan/types.hpp"

namespace linkspan::bare {

using Clock = std::chrono::steady_clock;

/// Until `*word` is at least `value`; now and then the stream is asked for an error. timed_out:
/// what is in the stream may still run, so that its memory must live on.
Status spin(const std::uint64_t* word, std::uint64_t value, const cuda::DeviceScope& scope,
            const cuda::Stream& stream, Clock::time_point limit);

class EndWord {
 public:
  static Result<EndWord> create(const cuda::DeviceScope& scope);

  /// Returns the address for kernels and copies.
  cuda::CUdeviceptr address() const noexcept { return memory_.device_address(); }
  /// Writes `value` after all work that is in the stream. Values must rise.
  Status write(const cuda::DeviceScope& scope, cuda::Stream& stream, std::uint64_t value) const {
    return stream.write_value(scope, memory_.device_address(), value);
  }
  Status wait(const cuda::DeviceScope& scope, const cuda::Stream& stream, std::uint64_t value,
              Clock::time_point limit) const {
    return spin(reinterpret_cast<const std::uint64_t*>(memory_.data()), value, scope, stream,
                limit);
  }

 private:
  explicit EndWord(cuda::PinnedBuffer memory) : memory_(std::move(memory)) {}
  cuda::PinnedBuffer memory_;
};

}  // namespace linkspan::bare
