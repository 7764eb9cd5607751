// linkspan/captured_transfer.hpp - a prepared transfer inside a CUDA graph of the user: each launch
// of the graph is a transfer.
//
//   cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
//   auto layer = prepared.capture({.kind = StreamOrder::Kind::created, .handle = stream}).value();
//   cudaStreamEndCapture(stream, &graph);  // then instantiate and launch it any number of times
//   layer.wait(launches, 1s);
//
// Path of a byte: a kernel of the graph copies it, on the GPU of the stream. A launch makes no call
// of this library, so it has no deadline, cannot be canceled and gets no Transfer.
// Threads: any thread.
// Invariants: a handle may be copied and may outlive the graph and the Engine; dropping it does not
// affect the graph. The graph may outlive all of them: once close(), the end of either region, of
// the peer or of the Engine has returned OK, its launches copy nothing and count as refused. Each
// of these waits for a launch that is copying.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "linkspan/status.hpp"
#include "linkspan/types.hpp"

namespace linkspan {

namespace engine {
class EngineImpl;
struct HandleAccess;
struct CapturedState;
}  // namespace engine

struct CaptureOptions {
  /// Is delivered to the peer's Engine::notifications() after the data, once for each launch. A
  /// thread of the Engine sends it, about 0.1 ms after the data. Empty: no notification.
  std::span<const std::byte> notification{};
  /// Limits the CTAs of the kernel; the smaller of this and EngineOptions::copy_ctas counts.
  std::optional<unsigned> copy_ctas{};
};

class LINKSPAN_API CapturedTransfer {  // NOLINT(cppcoreguidelines-special-member-functions)
 public:
  CapturedTransfer() = default;  ///< Refers to no captured transfer.
  CapturedTransfer(const CapturedTransfer&) = default;
  CapturedTransfer(CapturedTransfer&&) noexcept = default;
  /// Copies or moves, by value. The old value releases its state before the Engine.
  CapturedTransfer& operator=(CapturedTransfer other) noexcept {
    impl_.swap(other.impl_);
    state_.swap(other.state_);
    return *this;
  }
  ~CapturedTransfer() = default;
  bool valid() const noexcept { return state_ != nullptr; }
  std::uint64_t bytes() const noexcept;  ///< Bytes that one launch moves.

  /// Returns the number of launches whose data has arrived. Costs a load. Launches of one graph
  /// executable run in order. Those of two must not overlap: the number may then run ahead of the
  /// data, and is right again once both have ended.
  std::uint64_t completed() const noexcept;
  /// Returns whether the data of at least `n` launches has arrived.
  bool completed(std::uint64_t n) const noexcept { return completed() >= n; }
  /// Returns the number of launches that began or ran after the end; the last may have copied some
  /// of its data.
  std::uint64_t refused() const noexcept;
  /// Waits until completed(n). pending: `timeout` passed first. After the end: status().
  Status wait(std::uint64_t n, Duration timeout) const;
  /// Returns OK while launches copy, else why they do not.
  Status status() const;
  /// Ends it: launches copy nothing from now on. Waits for one that is copying and for its
  /// notification. pending: `timeout` passed first; call again.
  Status close(Duration timeout) const;

 private:
  friend struct engine::HandleAccess;
  CapturedTransfer(std::shared_ptr<engine::EngineImpl> core,
                   std::shared_ptr<engine::CapturedState> state);

  std::shared_ptr<engine::EngineImpl> impl_;      // also the Engine's and other handles'
  std::shared_ptr<engine::CapturedState> state_;  // also the Engine's until the graph has ended
};

}  // namespace linkspan
