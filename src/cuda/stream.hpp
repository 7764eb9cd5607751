// cuda/stream.hpp - owns one CUstream, for copies and the writes of flags that show their end.
//
// A Stream is always non-blocking: it and the legacy NULL stream do not wait for each other. A
// stream takes about a thousand entries and then blocks its caller inside the driver (fact:
// Queues.AFullStreamBlocksItsCallerOnly); users of this class must stay below that.
// Threads: externally synchronised.
// Invariants: the context in which it was created outlives it.
#pragma once

#include <cstdint>
#include <utility>

#include "cuda/device_scope.hpp"

namespace linkspan::cuda {

class Event;

class Stream {
 public:
  /// Creates a stream. A lower `priority` runs sooner; the driver clamps it to its range.
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
  /// Destroys the stream without waiting; submitted work still runs (fact:
  /// Streams.ADestroyedOneFinishesItsWork).
  ~Stream();  // errors while the driver unloads are ignored

  CUstream get() const noexcept { return stream_; }

  /// Returns OK if the stream is idle, `pending` (without allocating) if work is left, else the
  /// work's error, with Scope::process if the context is lost.
  Status query(const DeviceScope& scope) const;
  /// Writes `value` to the 8-byte aligned `flag` once all work before it is done and visible to
  /// the host and to peers (fact: Streams.AWriteValueIsBehindTheCopyBeforeIt). `flag` is a device
  /// address, of mapped host memory for a completion.
  Status write_value(const DeviceScope& scope, CUdeviceptr flag, std::uint64_t value);
  /// Does the same for a flag of 4 bytes.
  Status write_value32(const DeviceScope& scope, CUdeviceptr flag, std::uint32_t value);
  /// Makes all that is submitted from now on wait until `flag` is at least `value`. Use only on a
  /// stream of its own: the driver's scheduler does not see such waits (docs/cuda_notes.md,
  /// "streams").
  Status wait_value(const DeviceScope& scope, CUdeviceptr flag, std::uint64_t value);
  /// Copies between memory of GPUs or of the host. Returns before the bytes have moved, unless host
  /// memory is pageable: then it may wait (fact: Streams.ACopyToPageableMemoryWaitsForItsStream)
  /// and must not be used on the path of a byte.
  Status copy(const DeviceScope& scope, CUdeviceptr to, CUdeviceptr from,
              std::uint64_t bytes) const;
  Status fill(const DeviceScope& scope, CUdeviceptr to, unsigned char value,
              std::uint64_t bytes) const;
  /// Launches a kernel. `parameters` are the addresses of its parameters, read during the call.
  Status launch(const DeviceScope& scope, CUfunction function, unsigned ctas, unsigned threads,
                void** parameters) const;
  /// Waits until the stream is idle, however long that takes. For set-up and executors only.
  Status synchronize(const DeviceScope& scope) const;
  /// Makes all that is submitted from now on wait for the last record() of `event`, which may be
  /// recorded again or end meanwhile (fact: Events.AWaitIsForTheRecordBeforeIt).
  Status wait_for(const DeviceScope& scope, const Event& event);

 private:
  Stream(const DeviceScope& scope, CUstream stream) noexcept
      : driver_(&scope.driver()), context_(scope.context()), stream_(stream) {}

  const Driver* driver_;
  CUcontext context_;
  CUstream stream_;  // null only after a move
};

/// Returns true while `stream` captures a graph: an event or a copy on it would be captured, not
/// run. Takes any stream of the scope's context, also the user's.
Result<bool> is_capturing(const DeviceScope& scope, CUstream stream);
/// Makes a user's stream wait for `event`, as Stream::wait_for() does.
Status make_wait(const DeviceScope& scope, CUstream stream, const Event& event);

}  // namespace linkspan::cuda
