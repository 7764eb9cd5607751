// cuda/stream.hpp - owns one CUstream, on which copies and the words that tell of their end go out.
//
// Always non-blocking: the legacy NULL stream neither waits for it nor holds it up. A stream takes
// about a thousand entries and then blocks its caller inside the driver (fact:
// Queues.AFullStreamBlocksItsCallerOnly); keeping below that is the user's of this class.
// Threads: externally synchronised.
// Invariants: the context that it was created in outlives it.
#pragma once

#include <cstdint>
#include <utility>

#include "cuda/device_scope.hpp"

namespace linkspan::cuda {

class Event;

class Stream {
 public:
  /// `priority` as the driver counts: lower is sooner, what is out of its range is clamped.
  static Result<Stream> create(const DeviceScope& scope, int priority = 0);

  Stream(Stream&& other) noexcept
      : driver_(other.driver_),
        context_(other.context_),
        stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(driver_, other.driver_);
    std::swap(context_, other.context_);
    std::swap(stream_, other.stream_);
    return *this;
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  /// Does not wait: what was submitted still runs (fact: Streams.ADestroyedOneFinishesItsWork).
  ~Stream();  // silent while the driver unloads

  CUstream get() const noexcept { return stream_; }

  /// OK: idle. `pending`: work is left; costs no allocation. Any other: the work's error, with
  /// Scope::process when the context is lost.
  Status query(const DeviceScope& scope) const;
  /// Writes `value` to the 8-byte aligned `flag` once all work before it is done and visible to
  /// the host and to peers (fact: Streams.AWriteValueIsBehindTheCopyBeforeIt). `flag` is a device
  /// address, of mapped host memory for a completion.
  Status write_value(const DeviceScope& scope, CUdeviceptr flag, std::uint64_t value);
  /// What is submitted from now on starts once `flag` is at least `value`. On a stream of its own
  /// only: the driver's scheduler does not see such waits (docs/cuda_notes.md, "streams").
  Status wait_value(const DeviceScope& scope, CUdeviceptr flag, std::uint64_t value);
  /// Either side may be a GPU's or host memory. Returns before the bytes have moved, unless the
  /// host's are pageable: then it may wait (fact: Streams.ACopyToPageableMemoryWaitsForItsStream),
  /// and is no call for the path of a byte.
  Status copy(const DeviceScope& scope, CUdeviceptr to, CUdeviceptr from,
              std::uint64_t bytes) const;
  Status fill(const DeviceScope& scope, CUdeviceptr to, unsigned char value,
              std::uint64_t bytes) const;
  /// `parameters`: the address of each parameter of the function, read during the call.
  Status launch(const DeviceScope& scope, CUfunction function, unsigned ctas, unsigned threads,
                void** parameters) const;
  /// Waits until the stream is idle, however long that takes: for set-up and executors only.
  Status synchronize(const DeviceScope& scope) const;
  /// What is submitted from now on starts after the last record() of `event`, which may be recorded
  /// again or end meanwhile (fact: Events.AWaitIsForTheRecordBeforeIt).
  Status wait_for(const DeviceScope& scope, const Event& event);

 private:
  Stream(const DeviceScope& scope, CUstream stream) noexcept
      : driver_(&scope.driver()), context_(scope.context()), stream_(stream) {}

  const Driver* driver_;
  CUcontext context_;
  CUstream stream_;  // null only after a move
};

/// True while `stream` records a graph: an event or a copy on it would be recorded, not run. Any
/// stream of the scope's context, the user's as well.
Result<bool> is_capturing(const DeviceScope& scope, CUstream stream);
/// As Stream::wait_for(), for a stream that is the user's.
Status make_wait(const DeviceScope& scope, CUstream stream, const Event& event);

}  // namespace linkspan::cuda
