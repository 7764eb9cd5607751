#include "transport/tcp/receiver.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/crc32c.hpp"
#include "copy/cma.hpp"
#include "memory/validate_allocation.hpp"
#include "transport/tcp/iovecs.hpp"

namespace linkspan::transport::tcp {
namespace {

constexpr std::size_t kParts = 512;  // of one call
constexpr std::size_t kScrap = 64u << 10;
constexpr std::size_t kReceiverPollBytes = std::size_t{4}
                                           << 20;  // then other connections are polled

void* pointer(std::uint64_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

bool is_atomic_u64(const Extent& extent) { return extent.bytes == 8 && extent.here % 8 == 0; }

}  // namespace

Result<bool> Receiver::poll(bool& readable, std::vector<Answer>& answers) {
  bool moved = poll_gpu(answers);
  for (std::size_t left = kReceiverPollBytes; left != 0;) {
    if (!destination_) {
      const auto begun = begin_frame(answers);
      if (!begun.ok()) return begun.status();
      moved |= *begun;
      if (*begun) continue;
    } else if (parts_.empty()) {
      if (!begin_part()) break;  // the GPU has all staging buffers
    }
    const auto received = receive(readable);
    if (!received.ok()) return received.status();
    if (*received == 0) break;
    moved = true;
    left -= std::min(left, *received);
    if (destination_)
      destination_->of->progress.bytes.fetch_add(*received, std::memory_order_relaxed);
    if (destination_ && part_ == parts_.size()) end_part(answers);
  }
  return moved;
}

/// Returns true if a frame has begun, or was one without data.
Result<bool> Receiver::begin_frame(std::vector<Answer>& answers) {
  const std::span<const std::byte> here(buffer_.data() + begin_, end_ - begin_);
  const auto size = head_bytes(here);
  if (!size.ok()) return size.status();
  if (!*size || here.size() < **size) return false;
  auto head = decode(here.first(**size));
  if (!head.ok()) return head.status();
  if (auto whole = check_seal(**size + head->data); !whole.ok() || !*whole) return whole;
  if (head->incarnation != peer_)
    return Status(Code::corrupt, Scope::peer, "a frame of another Engine");
  begin_ += **size;
  if (head->data == 0) end_frame();
  if (head->type != FrameType::put && head->type != FrameType::data) {
    if (Status status = group_.on_frame(*head); !status.ok()) return status;
    return true;
  }
  auto destination = group_.resolve_destination(*head);
  if (!destination.ok()) return destination.status();
  summed_ = head->summed;
  expected_sum_ = head->sum;
  sum_ = head->sum_of_head;
  if (head->data == 0) {
    report(*destination->of, 0, sum_ == expected_sum_ ? Status() : wrong_sum(head->type), answers);
    return true;
  }
  destination_ = *std::move(destination);
  left_ = destination_->bytes;
  extent_ = 0;
  return true;
}

/// Verifies the seal of the next frame, which has `frame` bytes. Returns false if it is not wholly
/// here.
Result<bool> Receiver::check_seal(std::uint64_t frame) {
  if (!verifier_) return true;
  const std::span<const std::byte> here(buffer_.data() + begin_, end_ - begin_);
  if (here.size() < frame + base::kMacTagBytes) return false;
  verifier_->update(here.first(frame));
  const auto seal = verifier_->finish();
  if (!seal.ok()) return seal.status();
  if (!base::same_secret(*seal, here.subspan(frame, base::kMacTagBytes)))
    return Status(Code::corrupt, Scope::peer, "a frame whose seal is not its own");
  return true;
}

/// Lays out where the next bytes go. Returns false if no staging buffer is free.
bool Receiver::begin_part() {
  part_ = 0;
  part_bytes_ = 0;
  to_user_ = false;
  const cuda::Device* const device = destination_->device;
  const bool lands = !destination_->extents.empty() && status_.ok();
  if (lands && device != nullptr) {
    if (!staging_.room(*device)) return false;
    runs_.clear();
    for (; extent_ < destination_->extents.size() && runs_.size() < copy::Staging::kRuns; ++extent_)
      runs_.push_back({destination_->extents[extent_].here, destination_->extents[extent_].bytes});
    auto buffer =
        staging_.acquire({.device = device, .runs = runs_, .to_gpu = true, .ctas = ctas_});
    status_ = buffer.status();
    if (buffer.ok()) staging_buffer_ = *buffer;
    for (std::size_t i = 0; buffer.ok() && i < runs_.size(); ++i)
      append(parts_, 0, staging_buffer_->at(i), runs_[i].bytes);
  } else if (lands) {
    to_user_ = true;
    deferred_stores_.reserve(destination_->extents.size());  // parts_ points into it
    for (const Extent& extent : destination_->extents)
      append(parts_, 0,
             is_atomic_u64(extent) ? deferred_stores_.emplace_back(extent.here).value.data()
                                   : pointer(extent.here),
             extent.bytes);
  }
  if (parts_.empty()) discard(left_);
  for (const iovec& part : parts_) part_bytes_ += part.iov_len;
  return true;
}

void Receiver::discard(std::uint64_t bytes) {
  scrap_.resize(kScrap);
  for (; bytes != 0; bytes -= parts_.back().iov_len)
    parts_.push_back({scrap_.data(), std::min<std::uint64_t>(bytes, kScrap)});
}

void Receiver::release_revoked() {
  if (!destination_ || destination_->use.memory() == nullptr || !destination_->of->progress.revoked)
    return;
  std::uint64_t left = 0;  // of the part
  for (std::size_t i = part_; i < parts_.size(); ++i) left += parts_[i].iov_len;
  const bool begun = !parts_.empty();
  parts_.clear();
  part_ = 0;
  if (begun) discard(left);
  deferred_stores_.clear();
  destination_->extents.clear();
  if (staging_buffer_ != nullptr) staging_.release(*std::exchange(staging_buffer_, nullptr));
  destination_->use = {};
}

/// Receives into the part, and beyond it into the buffer. Returns 0 if nothing more is here.
Result<std::size_t> Receiver::receive(bool& readable) {
  if (destination_ && begin_ != end_) return land_buffered();
  if (!readable) return std::size_t{0};
  if (begin_ != 0) std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
  end_ -= std::exchange(begin_, 0);
  into_.clear();
  std::size_t direct = 0;
  // TLS writes by itself, and a fault in freed memory would end the process.
  const bool in_place = destination_ && (tls_ == nullptr || !to_user_);
  for (std::size_t i = part_; in_place && i < parts_.size() && into_.size() < kParts; ++i) {
    into_.push_back(parts_[i]);
    direct += parts_[i].iov_len;
  }
  if (!in_place || part_ + into_.size() == parts_.size())
    into_.push_back({buffer_.data() + end_, buffer_.size() - end_});
  auto got = receive_some();
  if (got.status().code() == Code::unreachable && to_user_) {
    discard_rest(got.status());
    return receive(readable);
  }
  if (got.ok() && *got == 0) readable = false;
  if (!got.ok() || *got == 0) return got;
  const std::size_t here = std::min(*got, direct);
  if (destination_) (void)advance(parts_, part_, here);
  end_ += *got - here;
  return got;
}

/// Moves bytes that were received together with the head to their destination.
std::size_t Receiver::land_buffered() {
  copied_.clear();
  std::size_t bytes = 0;
  for (std::size_t i = part_; i < parts_.size() && bytes < end_ - begin_; ++i) {
    copied_.push_back({.to = reinterpret_cast<std::uintptr_t>(parts_[i].iov_base),
                       .from = reinterpret_cast<std::uintptr_t>(buffer_.data() + begin_ + bytes),
                       .bytes = std::min(parts_[i].iov_len, end_ - begin_ - bytes)});
    bytes += copied_.back().bytes;
  }
  if (to_user_) {
    if (Status status = copy::copy_within(copied_); !status.ok()) discard_rest(status);
  } else {
    for (const copy::Piece& each : copied_)
      std::memcpy(pointer(each.to), pointer(each.from), each.bytes);
  }
  begin_ += bytes;
  (void)advance(parts_, part_, bytes);
  return bytes;
}

/// Discards the rest of the frame and fails its batch.
void Receiver::discard_rest(const Status& why) {
  std::uint64_t left = 0;
  for (std::size_t i = part_; i < parts_.size(); ++i) left += parts_[i].iov_len;
  parts_.resize(part_);
  scrap_.resize(kScrap);
  for (; left != 0; left -= parts_.back().iov_len)
    parts_.push_back({scrap_.data(), std::min<std::uint64_t>(left, kScrap)});
  deferred_stores_.clear();
  to_user_ = false;
  status_ = why;
}

/// Receives into into_. Returns 0 if nothing is here. unreachable: a destination is not mapped
/// writable.
Result<std::size_t> Receiver::receive_some() {
  if (tls_ != nullptr) return tls_->receive(into_);
  msghdr message{};
  message.msg_iov = into_.data();
  message.msg_iovlen = into_.size();
  ssize_t got = -1;
  do got = ::recvmsg(socket_, &message, MSG_DONTWAIT);
  while (got < 0 && errno == EINTR);
  if (got > 0) return static_cast<std::size_t>(got);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::size_t{0};
  if (got < 0 && errno == EFAULT) return memory::freed_early();
  return Status(Code::disconnected, Scope::peer,
                got == 0 ? "the peer has closed a data connection"
                         : std::string("a data connection brings no more: ") +
                               std::generic_category().message(errno));
}

/// Continues the checksum with the part, which has landed or is about to.
Status Receiver::sum_part() {
  const auto add = [this](const void* at, std::uint64_t bytes) {
    sum_ = base::crc32c({static_cast<const std::byte*>(at), bytes}, sum_);
  };
  if (staging_buffer_ != nullptr) {
    for (std::size_t i = 0; i < runs_.size(); ++i) add(staging_buffer_->at(i), runs_[i].bytes);
    return {};
  }
  scrap_.resize(kScrap);
  auto store = deferred_stores_.begin();
  for (const Extent& extent : destination_->extents) {
    if (is_atomic_u64(extent)) {
      add((store++)->value.data(), extent.bytes);
      continue;
    }
    for (std::uint64_t at = 0, some = 0; at < extent.bytes; at += some) {
      some = std::min<std::uint64_t>(extent.bytes - at, kScrap);
      const copy::Piece back{.to = reinterpret_cast<std::uintptr_t>(scrap_.data()),
                             .from = extent.here + at,
                             .bytes = some};
      if (Status status = copy::copy_within({&back, 1}); !status.ok()) return status;
      add(scrap_.data(), some);
    }
  }
  return {};
}

/// Finishes a part that has arrived completely.
void Receiver::end_part(std::vector<Answer>& answers) {
  left_ -= part_bytes_;
  parts_.clear();
  // A discarded part has failed before.
  if (summed_ && status_.ok() && !destination_->extents.empty()) {
    status_ = sum_part();
    if (status_.ok() && left_ == 0 && sum_ != expected_sum_)
      status_ =
          wrong_sum(destination_->of->type == FrameType::put ? FrameType::put : FrameType::data);
    if (!status_.ok()) {
      deferred_stores_.clear();
      if (staging_buffer_ != nullptr) staging_.release(*std::exchange(staging_buffer_, nullptr));
    }
  }
  for (const DeferredStore& store :
       deferred_stores_)  // after the data of this frame and earlier ones
    if (status_.ok())
      status_ = copy::store_u64(store.here, std::bit_cast<std::uint64_t>(store.value));
  deferred_stores_.clear();
  Status status = status_;
  // The peer gets the answer next, and the owner may then deregister the region.
  if (left_ == 0 && staging_buffer_ == nullptr) destination_->use = {};
  if (staging_buffer_ != nullptr) {
    copy::StagingBuffer& buffer = *std::exchange(staging_buffer_, nullptr);
    StagedPart& what = staged_parts_[buffer.index()];
    status = staging_.submit(buffer);
    if (status.ok()) {
      what.of = destination_->of;
      what.bytes = part_bytes_;
      if (destination_->use.memory() != nullptr) what.use = RegionUse(destination_->use.memory());
      ++gpu_copies_;
    } else {
      report(*destination_->of, part_bytes_, status, answers);
    }
  } else {
    report(*destination_->of, part_bytes_, status, answers);
  }
  if (left_ != 0) return;
  destination_.reset();
  status_ = {};
  end_frame();
}

/// Skips the frame's seal, which was verified.
void Receiver::end_frame() noexcept {
  if (verifier_) begin_ += base::kMacTagBytes;
}

bool Receiver::poll_gpu(std::vector<Answer>& answers) {
  bool moved = false;
  while (copy::StagingBuffer* const done = staging_.next_done()) {
    StagedPart what = std::exchange(staged_parts_[done->index()], {});
    what.use = {};
    const Status status = done->status();
    staging_.release(*done);
    --gpu_copies_;
    report(*what.of, what.bytes, status, answers);
    moved = true;
  }
  return moved;
}

void Receiver::report(Incoming& batch, std::uint64_t bytes, const Status& status,
                      std::vector<Answer>& answers) {
  if (auto answer = group_.data_landed(batch, bytes, status)) answers.push_back(*std::move(answer));
}

bool Receiver::stop() {
  if (staging_buffer_ != nullptr) staging_.release(*std::exchange(staging_buffer_, nullptr));
  std::vector<Answer> answers;
  (void)poll_gpu(answers);
  return gpu_copies_ == 0;
}

}  // namespace linkspan::transport::tcp
