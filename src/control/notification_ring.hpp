// control/notification_ring.hpp - the notifications of one peer for another, in memory of both.
//
// The reader makes the ring and sends it with its hello; the writer puts messages in, each a
// element with its length and then its bytes, and no system call is made. So a notification is with
// the peer as soon as the writer's next look at its transfer has found it complete. A reader that
// does not look leaves the ring full: then the writer is told no_resource, and asks over the socket
// that the ring be collected (Session). A reader that sleeps asks for a bell, which is the same
// message. What the other side writes is hostile. Threads: each side externally synchronised; the
// two sides share atomic words. Invariants: each side believes its own position and measures the
// other's.
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

  static Result<NotificationRing> create();                      ///< The reader's.
  static Result<NotificationRing> open(const base::Fd& ring);    ///< As SharedPage::open().
  base::Fd release_fd() noexcept { return page_.release_fd(); }  ///< Of one that create() made.

  /// The writer's. no_resource: it is full, until the reader has taken some. corrupt: the reader
  /// claims to have taken what was not written. invalid_argument: over kMaxMessage.
  Status put(std::span<const std::byte> message);
  /// The writer's, behind a put(): whether the reader sleeps and is to be told of it. Tells once
  /// for each request_doorbell().
  bool consume_doorbell_request() {
    return page_[kDoorbell].load(std::memory_order_seq_cst) != 0 &&
           page_[kDoorbell].exchange(0, std::memory_order_seq_cst) != 0;
  }
  void restore_doorbell_request() {
    page_[kDoorbell].store(1, std::memory_order_relaxed);
  }  ///< It was not told.
  /// The reader's. False: a message is there already. True: the next put() is followed by a bell.
  bool request_doorbell();
  /// The reader's: the oldest one; none: all are taken. Costs one load then. corrupt, for good: the
  /// writer writes no messages.
  Result<std::optional<std::vector<std::byte>>> next();

 private:
  // Three words of a line each, then the messages.
  static constexpr std::size_t kWritten = 0, kRead = 16, kDoorbell = 24, kFirst = 32;
  static constexpr std::size_t kElements = std::size_t{16} << 10;

  explicit NotificationRing(base::SharedPage page) : page_(std::move(page)) {}
  base::SharedPage::Atomic& element(std::uint64_t position) const noexcept {
    return page_[kFirst + position % kElements];
  }

  base::SharedPage page_;
  std::uint64_t position_ = 0;  // ours, in words since the beginning
};

}  // namespace linkspan::control
