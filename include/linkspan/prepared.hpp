// linkspan/prepared.hpp - a prepared transfer: checked once, then posted repeatedly at the cost of
// one launch.
//
//   auto layer = peer.prepare(Op::write, kv, remote, pages).value();  // at set-up
//   auto moved = layer.post(positions, {.deadline = 1s}).value();     // for each request
//
// Path of a byte: post() skips the checks of the shape; from the choice of a path on it is
// Peer::write() or read().
// Threads: any thread. Several posts may be in flight at once, each a Transfer of its own.
// Invariants: a handle may be copied and may outlive the Region, the RemoteRegion, the Peer and the
// Engine; post() then answers what write() or read() would. The peer's region stays mapped while a
// handle lives; the local region is not kept.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "linkspan/captured_transfer.hpp"
#include "linkspan/status.hpp"
#include "linkspan/transfer.hpp"

namespace linkspan {

namespace engine {
struct PreparedState;
}  // namespace engine

class LINKSPAN_API Prepared {  // NOLINT(cppcoreguidelines-special-member-functions)
 public:
  Prepared() = default;  ///< Refers to no prepared transfer.
  Prepared(const Prepared&) = default;
  Prepared(Prepared&&) noexcept = default;
  /// Copies or moves, by value. The old value releases the regions before the Engine.
  Prepared& operator=(Prepared other) noexcept {
    impl_.swap(other.impl_);
    state_.swap(other.state_);
    return *this;
  }
  ~Prepared() = default;
  bool valid() const noexcept { return state_ != nullptr; }
  std::uint64_t bytes() const noexcept;  ///< Bytes that one post() of all moves.

  /// Submits all that was prepared, as one transfer: Peer::write() or read() with the same options
  /// and errors, without the checks of the shape. A kernel reads the page lists where prepare()
  /// stored them; on other paths a post costs as much as a submission.
  Result<Transfer> post(const TransferOptions& options = {}) const;
  /// Submits only the pages at these positions of the prepared lists, of several pairs the same of
  /// each; a position may repeat. `positions` is read during the call only. invalid_argument: a
  /// position is not less than the lists' length, or not all shapes are Pages of one length.
  Result<Transfer> post(std::span<const std::uint32_t> positions,
                        const TransferOptions& options = {}) const;
  /// Submits only the pairs of regions with these indices, as one transfer; an index may repeat if
  /// what it writes twice may be either's. `indices` is read during the call only. Errors name a
  /// pair by its place in `indices`. invalid_argument: an index is not less than the number of
  /// prepared pairs, no index, or more than 65,536.
  Result<Transfer> post_pairs(std::span<const std::uint32_t> indices,
                              const TransferOptions& options = {}) const;

  /// Makes all that was prepared a node of the CUDA graph that `stream` captures; each launch of
  /// the graph moves it. The page lists, the regions and the peer are those of now. Takes about a
  /// millisecond, and does not disturb the capture, whatever its mode. invalid_argument: the stream
  /// captures no graph. unsupported: the stream's GPU does not map both memories (TCP, a bounce,
  /// pageable memory, a peer that copies), with the path in the text. Errors as post().
  Result<CapturedTransfer> capture(const StreamOrder& stream,
                                   const CaptureOptions& options = {}) const;

 private:
  friend struct engine::HandleAccess;
  Prepared(std::shared_ptr<engine::EngineImpl> core, std::shared_ptr<engine::PreparedState> state);

  std::shared_ptr<engine::EngineImpl> impl_;      // also the Engine's and other handles'
  std::shared_ptr<engine::PreparedState> state_;  // also of transfers in flight
};

}  // namespace linkspan
