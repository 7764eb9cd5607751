// linkspan/transfer.hpp - the handle of a submitted transfer: status, wait, cancel.
//
// Path of a byte: the memory of both sides belongs to the transfer from submission until it is
// quiet (see Transfer::done).
// Threads: any thread.
// Invariants: a handle may be copied and may outlive the Engine; dropping it does not affect the
// transfer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "linkspan/status.hpp"
#include "linkspan/types.hpp"

namespace linkspan {

namespace engine {
class EngineImpl;
struct HandleAccess;
struct TransferState;
}  // namespace engine

struct TransferOptions {
  /// Limits the time from submission to completion: a later transfer is canceled and ends
  /// `timed_out`. Zero: EngineOptions::transfer_deadline.
  Duration deadline{0};
  /// Is delivered to the peer's Engine::notifications() after the data. Empty: no notification.
  std::span<const std::byte> notification{};
  StreamOrder after{};    ///< The copy starts after the work now in this stream of the user.
  StreamOrder release{};  ///< Later work in this stream of the user waits for the transfer.
  /// Copies a single block of some KiB by a persistent kernel, which saves about 1 us. Applies if
  /// a GPU of this process reaches both memories. The kernel stays on one SM for up to 1 ms; calls
  /// that wait for the whole GPU, such as cudaDeviceSynchronize and the first launch of a lazily
  /// loaded kernel, may wait for it. Without effect on other shapes and paths, and together with
  /// `after` or `release`.
  bool low_latency = false;
  /// Limits the CTAs of a copy kernel; the smaller of this and EngineOptions::copy_ctas counts. 0:
  /// copy engines only. If the peer copies, its own limit applies.
  std::optional<unsigned> copy_ctas{};
  /// Requires a prefix of Explanation::path ("cuda_ipc", "memfd+cpu_threads") or, with '!', forbids
  /// one ("!bounce"); "local" forbids the network. Any other path is refused as `unsupported`, with
  /// that path in the text. Empty: any path.
  std::string require{};
  /// Adds a CRC32C to each frame over TCP. The sender computes it from the source memory; the
  /// receiver verifies it in the destination memory, or before the bytes go to a GPU. A mismatch
  /// ends the transfer `corrupt`: do not use the destination's bytes. Writing to the memory during
  /// the transfer may cause a mismatch too. Costs one pass over the bytes on each side.
  /// unsupported: any other path, and send() and recv().
  bool checksum = false;
  /// Goes on over the next transport, such as TCP, with what is left if the transport that carries
  /// it fails while the peer lives. The handle, the deadline and the one notification stay. false,
  /// or `require` is set: the transfer ends `unreachable`.
  bool failover = true;
};

class LINKSPAN_API Transfer {
 public:
  Transfer() = default;  ///< Refers to no transfer.

  /// Waits until the transfer is quiet, and returns its final status: ok, timed_out (its own
  /// deadline), canceled, disconnected and so on. pending: `timeout` passed first; the transfer
  /// continues.
  Status wait(Duration timeout) const;
  /// Returns whether the transfer is quiet: nothing will ever again touch its memory, on either
  /// side. Makes progress before it looks, unless another thread is making it.
  bool done() const noexcept;
  Status status() const;  ///< Returns the final status, or `pending` before done().
  /// Requests an early end. ok: the transfer is quiet. pending: it is not quiet yet; call wait().
  Status cancel() const;
  /// Returns the number of bytes that were submitted. For a receive: the number that arrived, 0
  /// until it is done and ok.
  std::uint64_t bytes() const noexcept;
  std::uint64_t id() const noexcept;  ///< The id that logs and dump() print. 0: no transfer.

 private:
  friend struct engine::HandleAccess;
  friend class CompletionQueue;
  Transfer(std::shared_ptr<engine::EngineImpl> core, std::shared_ptr<engine::TransferState> state);

  std::shared_ptr<engine::EngineImpl> impl_;      // also the Engine's and other handles'
  std::shared_ptr<engine::TransferState> state_;  // also the TransferScheduler's until it is quiet
};

}  // namespace linkspan
