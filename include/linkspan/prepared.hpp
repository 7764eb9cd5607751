// linkspan/prepared.hpp - a transfer that is made again and again: checked once, posted at the cost
// of one launch.
//
//   auto layer = *peer.prepare(Op::write, kv, remote, pages);  // at set-up
//   auto moved = *layer.post(positions, {.deadline = 1s});     // for each request
//
// Threads: any thread; several posts may be in flight at once, each a Transfer of its own. A handle
// may be copied and may outlive the Region, the RemoteRegion, the Peer and the Engine: posting then
// answers what a write or read would. It counts as a handle of the peer's region, which stays
// mapped here while it lives, but does not hold the local one.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "linkspan/status.hpp"
#include "linkspan/transfer.hpp"

namespace linkspan {

namespace engine {
struct PreparedState;
}  // namespace engine

class LINKSPAN_API Prepared {  // NOLINT(cppcoreguidelines-special-member-functions)
 public:
  Prepared() = default;  ///< None.
  Prepared(const Prepared&) = default;
  Prepared(Prepared&&) noexcept = default;
  /// By value, for both kinds. The old one lets go of the regions before the Engine.
  Prepared& operator=(Prepared other) noexcept {
    impl_.swap(other.impl_);
    state_.swap(other.state_);
    return *this;
  }
  ~Prepared() = default;
  bool valid() const noexcept { return state_ != nullptr; }
  std::uint64_t bytes() const noexcept;  ///< That one post of the whole moves.

  /// As Peer::write() or read() of the same shape, with its errors and options, but for the checks
  /// of the shape. Page lists that a kernel copies lie where it reads them, and are not copied;
  /// on other ways a post costs what a submission does.
  Result<Transfer> post(const TransferOptions& options = {}) const;
  /// Only the pages at these positions of the prepared lists, each as often as it is named. Read
  /// during the call only. invalid_argument: a position that is not below their length, or what was
  /// prepared were no pages.
  Result<Transfer> post(std::span<const std::uint32_t> positions,
                        const TransferOptions& options = {}) const;

 private:
  friend class engine::EngineImpl;
  Prepared(std::shared_ptr<engine::EngineImpl> core, std::shared_ptr<engine::PreparedState> state);

  std::shared_ptr<engine::EngineImpl> impl_;      // also the Engine's and other handles'
  std::shared_ptr<engine::PreparedState> state_;  // also of transfers in flight
};

}  // namespace linkspan
