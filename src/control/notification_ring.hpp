// control/notification_ring.hpp - a ring of notifications in memory that two peers share.
//
// The reader creates the ring and sends it with its hello. The writer stores messages in it, each
// as a length and its bytes in units of 64 bits, without a system call. A notification thus reaches
// the peer as soon as the writer's next poll finds its transfer complete. If the reader does not
// poll, the ring fills up: the writer gets no_resource and asks over the socket that the ring be
// drained (Session). A reader that sleeps requests a doorbell, which is the same frame.
// The reader trusts nothing that the other side writes.
// Threads: each side externally synchronised; the two sides share atomics.
// Invariants: each side trusts its own position and checks the other's against it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/shared_page.hpp"

namespace linkspan::control {

class NotificationRing {
 public:
  static constexpr std::size_t kMaxMessage = std::size_t{64} << 10;  ///< Bytes of one message.

  static Result<NotificationRing> create();  ///< For the reader.
  static Result<NotificationRing> open(
      const base::Fd& ring);  ///< For the writer; as SharedPage::open().
  base::Fd release_fd() noexcept { return page_.release_fd(); }  ///< After create() only.

  /// Returns OK, or invalid_argument for a message over kMaxMessage.
  static Status check(std::span<const std::byte> message);
  /// Writer: stores a message. no_resource: the ring is full until the reader consumes some.
  /// corrupt: the reader claims to have read more than was written. invalid_argument: the message
  /// is longer than kMaxMessage.
  Status put(std::span<const std::byte> message);
  /// Writer, after put(): returns true if the reader sleeps and needs a doorbell, once for each
  /// request_doorbell().
  bool consume_doorbell_request() {
    return page_[kDoorbell].load(std::memory_order_seq_cst) != 0 &&
           page_[kDoorbell].exchange(0, std::memory_order_seq_cst) != 0;
  }
  /// Reader: returns false if a message is there already. Else the next put() is followed by a
  /// doorbell.
  bool request_doorbell();
  /// Reader: returns the oldest message, or nullopt at the cost of one load. corrupt: the ring is
  /// malformed, and stays so.
  Result<std::optional<std::vector<std::byte>>> next();

 private:
  // Indices of three atomics on cache lines of their own, then of the messages.
  static constexpr std::size_t kWritten = 0, kRead = 16, kDoorbell = 24, kFirst = 32;
  static constexpr std::size_t kElements = std::size_t{16} << 10;

  explicit NotificationRing(base::SharedPage page) : page_(std::move(page)) {}
  base::SharedPage::Atomic& element(std::uint64_t position) const noexcept {
    return page_[kFirst + position % kElements];
  }

  base::SharedPage page_;
  std::uint64_t position_ = 0;  // our own, in elements since the beginning
};

/// Owns both rings of a local session. A remote one has none.
class NotificationRings {
 public:
  Result<base::Fd> create();          ///< Ours, for the peer to write.
  Status open(const base::Fd& ring);  ///< The peer's.
  bool can_put() const noexcept { return outgoing_.has_value(); }
  /// Stores a message, as NotificationRing::put(). Sets `collect` if the peer has to be asked to
  /// drain the ring.
  Status put(std::span<const std::byte> message, bool& collect);
  /// Returns the next message, as NotificationRing::next(). An error is returned once.
  Result<std::optional<std::vector<std::byte>>> next();
  bool request_doorbell() { return !incoming_ || incoming_->request_doorbell(); }

 private:
  std::optional<NotificationRing> incoming_, outgoing_;
  bool collecting_ = false;  // the peer was asked to drain
};

}  // namespace linkspan::control
