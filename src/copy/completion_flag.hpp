// copy/completion_flag.hpp - a number in pinned memory that shows how far a queue's stream has
// come.
//
// On the path of a byte: the last step of a copy by a GPU. A CopyQueue writes the number of each
// order after its copies, and reads the flag without a driver call. Where the write would stall the
// copy engine, a second stream makes it.
// Threads: externally synchronised (under its transport's mutex); create() is OFF THE LOCK.
// Invariants: no write overtakes the one before it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "cuda/event.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream.hpp"

namespace linkspan::copy {

class CompletionFlag {
 public:
  /// Makes a flag of value 0 at `offset` of `memory`, which outlives it; with a stream of its own
  /// if `beside`.
  static Result<CompletionFlag> create(const cuda::DeviceScope& scope,
                                       const cuda::PinnedBuffer& memory, std::size_t offset,
                                       bool beside);
  /// Returns the last number that was written: all that preceded the write has ended.
  std::uint64_t value() const noexcept;
  /// Writes the number after all that is in the queue's stream. `bytes`: of what precedes it;
  /// `alone`: nothing else is in flight there.
  Status write(const cuda::DeviceScope& scope, cuda::Stream& queue, std::uint64_t number,
               std::uint64_t bytes, bool alone);
  /// Queries the flag's own stream. OK: all its writes have ended, or there is no such stream.
  Status query(const cuda::DeviceScope& scope) const;

 private:
  /// Writes the flag beside the queue's stream. For 1 MiB between GPUs a write in the stream itself
  /// costs 3.3 us of 8.4, and this costs nothing; but it takes two more driver calls, which is
  /// longer than a small copy (two H200).
  struct FlagStream {
    cuda::Stream stream;
    cuda::Event event;
    std::uint64_t last = 0;  // number that it wrote
  };
  CompletionFlag(std::uint64_t* value, cuda::CUdeviceptr address)
      : value_(value), address_(address) {}

  std::uint64_t* value_;
  cuda::CUdeviceptr address_;
  std::optional<FlagStream> beside_;
};

}  // namespace linkspan::copy
