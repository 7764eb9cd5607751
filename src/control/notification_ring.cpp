#include "control/notification_ring.hpp"

#include <algorithm>
#include <cstring>

namespace linkspan::control {
namespace {

constexpr std::size_t kWordBytes = sizeof(std::uint64_t);

constexpr std::uint64_t words_of(std::uint64_t bytes) {
  return 1 + (bytes + kWordBytes - 1) / kWordBytes;
}

}  // namespace

Result<NotificationRing> NotificationRing::create() {
  auto page = base::SharedPage::create("linkspan-notifications", kFirst + kWords,
                                       base::SharedPage::Others::write);
  if (!page.ok()) return page.status();
  return NotificationRing(*std::move(page));
}

Result<NotificationRing> NotificationRing::open(const base::Fd& ring) {
  auto page = base::SharedPage::open(ring, kFirst + kWords, base::SharedPage::Others::write);
  if (!page.ok()) return page.status();
  return NotificationRing(*std::move(page));
}

Status NotificationRing::put(std::span<const std::byte> message) {
  if (message.size() > kLongest)
    return {Code::invalid_argument, Scope::request,
            "a message of " + std::to_string(message.size()) + " bytes; at most " +
                std::to_string(kLongest)};
  const std::uint64_t waiting = position_ - page_[kTaken].load(std::memory_order_acquire);
  if (waiting > kWords)
    return {Code::corrupt, Scope::peer, "the peer claims to have read more than was written"};
  if (kWords - waiting < words_of(message.size())) return Status::no_resource();
  word(position_++).store(message.size(), std::memory_order_relaxed);
  for (std::size_t done = 0; done < message.size(); done += kWordBytes) {
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, message.data() + done, std::min(kWordBytes, message.size() - done));
    word(position_++).store(bytes, std::memory_order_relaxed);
  }
  // Either this side sees the bell or the other sees the message: in one order with ask_for_bell().
  page_[kWritten].store(position_, std::memory_order_seq_cst);
  return {};
}

bool NotificationRing::ask_for_bell() {
  page_[kBell].store(1, std::memory_order_seq_cst);
  return page_[kWritten].load(std::memory_order_seq_cst) == position_;
}

Result<std::optional<std::vector<std::byte>>> NotificationRing::next() {
  const std::uint64_t written = page_[kWritten].load(std::memory_order_acquire) - position_;
  if (written == 0) return std::optional<std::vector<std::byte>>();
  const std::uint64_t length = word(position_).load(std::memory_order_relaxed);
  if (written > kWords || length > kLongest || words_of(length) > written)
    return Status(Code::corrupt, Scope::peer, "what lies in its ring are no notifications");
  std::vector<std::byte> message(length);
  for (std::size_t done = 0; done < length; done += kWordBytes) {
    const std::uint64_t bytes =
        word(position_ + 1 + done / kWordBytes).load(std::memory_order_relaxed);
    std::memcpy(message.data() + done, &bytes, std::min<std::size_t>(kWordBytes, length - done));
  }
  position_ += words_of(length);
  page_[kTaken].store(position_, std::memory_order_release);
  return std::optional(std::move(message));
}

}  // namespace linkspan::control
