// linkspan/transfer.hpp - what a submission becomes: a handle with a status, a deadline, a cancel.
//
// Threads: any thread. A handle may be copied and may outlive the Engine; dropping it changes
// nothing about the transfer.
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
struct TransferState;
}  // namespace engine

struct TransferOptions {
  /// From the submission on; what is not complete by then is canceled and ends `timed_out`.
  /// Zero: the Engine's default (30 s).
  Duration deadline{0};
  /// Delivered to the peer after the data, in Engine::notifications(). Empty: none.
  std::span<const std::byte> notification{};
  StreamOrder after{};    ///< The user's stream to run after.
  StreamOrder release{};  ///< The user's stream that goes on after it.
  /// Saves about a microsecond of a single block of some KiB between memories that a GPU of this
  /// process reaches: a kernel that stays on one of its SMs for up to a millisecond copies it. What
  /// waits for the whole GPU, as cudaDeviceSynchronize and the first launch of a kernel that loads
  /// lazily, may wait for that. Without effect on other shapes and ways, and beside `after` and
  /// `release`.
  bool low_latency = false;
  /// The smaller of this and EngineOptions::copy_ctas counts. 0: by copy engines only. Where the
  /// peer copies its own bound holds.
  std::optional<unsigned> copy_ctas{};
  /// A prefix of Explanation::path that must hold ("cuda_ipc", "memfd+cpu_threads"), or with '!'
  /// one that must not ("!bounce"); "local": no network. Else the submission is refused as
  /// `unsupported` with the path that it would have taken.
  std::string require{};
  /// CRC32C of what goes over TCP, frame by frame, beside TCP's own 16 bits: made here or there of
  /// the memory that is sent, looked at where it has landed, or on its way to a GPU. What differs
  /// ends `corrupt`: what is at the destination is not to be used then. Of memory that somebody
  /// writes to meanwhile it may differ as well. One pass over the bytes on each side. `unsupported`
  /// on every other way, and of send() and recv().
  bool checksum = false;
};

class LINKSPAN_API Transfer {
 public:
  Transfer() = default;  ///< None.

  /// Until the transfer is quiet: nothing will ever again touch its memory, on either side. The
  /// status is then final: ok, timed_out (its deadline), canceled, disconnected and so on. If
  /// `timeout` passes first the answer is timed_out too, and done() is false: it goes on.
  Status wait(Duration timeout) const;
  bool done() const noexcept;  ///< It is quiet. Costs one load.
  Status status() const;       ///< The final status, or `pending`.
  /// Asks for an early end. ok: it is quiet now. pending: not yet; wait() tells when.
  Status cancel() const;
  /// What was submitted. Of a receive: what the sender sent, once it is done and ok; 0 before.
  std::uint64_t bytes() const noexcept;
  std::uint64_t id() const noexcept;  ///< As logs and dump() name it. 0: none.

 private:
  friend class engine::EngineImpl;
  friend class CompletionQueue;
  Transfer(std::shared_ptr<engine::EngineImpl> core, std::shared_ptr<engine::TransferState> state);

  std::shared_ptr<engine::EngineImpl> impl_;      // also the Engine's and other handles'
  std::shared_ptr<engine::TransferState> state_;  // also the TransferScheduler's until it is quiet
};

}  // namespace linkspan
