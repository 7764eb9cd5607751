#include "control/notification_ring.hpp"

#include <algorithm>
#include <cstring>

namespace linkspan::control {
namespace {

constexpr std::size_t kElementBytes = sizeof(std::uint64_t);

constexpr std::uint64_t elements_for(std::uint64_t bytes) {
  return 1 + (bytes + kElementBytes - 1) / kElementBytes;
}

}  // namespace

Result<NotificationRing> NotificationRing::create() {
  auto page = base::SharedPage::create("linkspan-notifications", kFirst + kElements,
                                       base::SharedPage::Others::write);
  if (!page.ok()) return page.status();
  return NotificationRing(*std::move(page));
}

Result<NotificationRing> NotificationRing::open(const base::Fd& ring) {
  auto page = base::SharedPage::open(ring, kFirst + kElements, base::SharedPage::Others::write);
  if (!page.ok()) return page.status();
  return NotificationRing(*std::move(page));
}

Status NotificationRing::check(std::span<const std::byte> message) {
  if (message.size() > kMaxMessage)
    return {Code::invalid_argument, Scope::request,
            "a message of " + std::to_string(message.size()) + " bytes; at most " +
                std::to_string(kMaxMessage)};
  return {};
}

Status NotificationRing::put(std::span<const std::byte> message) {
  if (Status status = check(message); !status.ok()) return status;
  const std::uint64_t waiting = position_ - page_[kRead].load(std::memory_order_acquire);
  if (waiting > kElements)
    return {Code::corrupt, Scope::peer, "the peer claims to have read more than was written"};
  if (kElements - waiting < elements_for(message.size())) return Status::no_resource();
  element(position_++).store(message.size(), std::memory_order_relaxed);
  for (std::size_t done = 0; done < message.size(); done += kElementBytes) {
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, message.data() + done, std::min(kElementBytes, message.size() - done));
    element(position_++).store(bytes, std::memory_order_relaxed);
  }
  // Sequentially consistent with request_doorbell(): either this side sees the request, or the
  // reader sees the message.
  page_[kWritten].store(position_, std::memory_order_seq_cst);
  return {};
}

bool NotificationRing::request_doorbell() {
  page_[kDoorbell].store(1, std::memory_order_seq_cst);
  return page_[kWritten].load(std::memory_order_seq_cst) == position_;
}

Result<std::optional<std::vector<std::byte>>> NotificationRing::next() {
  const std::uint64_t written = page_[kWritten].load(std::memory_order_acquire) - position_;
  if (written == 0) return std::optional<std::vector<std::byte>>();
  const std::uint64_t length = element(position_).load(std::memory_order_relaxed);
  if (written > kElements || length > kMaxMessage || elements_for(length) > written)
    return Status(Code::corrupt, Scope::peer, "what lies in its ring are no notifications");
  std::vector<std::byte> message(length);
  for (std::size_t done = 0; done < length; done += kElementBytes) {
    const std::uint64_t bytes =
        element(position_ + 1 + done / kElementBytes).load(std::memory_order_relaxed);
    std::memcpy(message.data() + done, &bytes, std::min<std::size_t>(kElementBytes, length - done));
  }
  position_ += elements_for(length);
  page_[kRead].store(position_, std::memory_order_release);
  return std::optional(std::move(message));
}

Result<base::Fd> NotificationRings::create() {
  auto ring = NotificationRing::create();
  if (!ring.ok()) return ring.status();
  incoming_.emplace(*std::move(ring));
  return incoming_->release_fd();
}

Status NotificationRings::open(const base::Fd& ring) {
  auto opened = NotificationRing::open(ring);
  if (!opened.ok()) return opened.status();
  outgoing_.emplace(*std::move(opened));
  return {};
}

Status NotificationRings::put(std::span<const std::byte> message, bool& collect) {
  Status status = outgoing_->put(message);
  const bool full = status.code() == Code::no_resource;
  collect = full ? !collecting_ : status.ok() && outgoing_->consume_doorbell_request();
  collecting_ = full;
  return status;
}

Result<std::optional<std::vector<std::byte>>> NotificationRings::next() {
  if (!incoming_) return std::optional<std::vector<std::byte>>();
  auto next = incoming_->next();
  if (!next.ok()) incoming_.reset();
  return next;
}

}  // namespace linkspan::control
