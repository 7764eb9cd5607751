#include "transport/tcp/receiver.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "copy/cma.hpp"

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
    if (!frame_) {
      const auto begun = begin_frame(answers);
      if (!begun.ok()) return begun.status();
      moved |= *begun;
      if (*begun) continue;
    } else if (part_.iovecs.empty()) {
      if (!begin_part()) break;  // the GPU has all staging buffers
    }
    const auto received = receive(readable);
    if (!received.ok()) return received.status();
    if (*received == 0) break;
    moved = true;
    left -= std::min(left, *received);
    if (!frame_) continue;
    frame_->to.of->progress.bytes.fetch_add(*received, std::memory_order_relaxed);
    if (part_.iovecs.left().empty()) end_part(answers);
  }
  return moved;
}

/// Returns true if a frame has begun, or was one without data.
Result<bool> Receiver::begin_frame(std::vector<Answer>& answers) {
  auto next = input_.next_head();
  if (!next.ok()) return next.status();
  if (!*next) return false;
  Head& head = **next;
  if (head.type != FrameType::put && head.type != FrameType::data) {
    if (Status status = group_.on_frame(head); !status.ok()) return status;
    return true;
  }
  auto destination = group_.resolve_destination(head);
  if (!destination.ok()) return destination.status();
  const FrameSum sum(head);
  if (head.data == 0)
    report(*destination->of, 0, sum.matches() ? Status() : wrong_sum(head.type), answers);
  else
    frame_.emplace(ReceivedFrame{.to = *std::move(destination), .sum = sum});
  return true;
}

/// Lays out where the next bytes go. Returns false if no staging buffer is free.
bool Receiver::begin_part() {
  part_.to_user = false;
  const std::vector<Extent>& extents = frame_->to.extents;
  const cuda::Device* const device = frame_->to.device;
  const bool lands = !extents.empty() && frame_->status.ok();
  if (lands && device != nullptr) {
    if (!staging_.room(*device)) return false;
    part_.runs.clear();
    for (std::size_t& i = frame_->extent;
         i < extents.size() && part_.runs.size() < copy::Staging::kRuns; ++i)
      part_.runs.push_back({extents[i].here, extents[i].bytes});
    auto buffer =
        staging_.acquire({.device = device, .runs = part_.runs, .to_gpu = true, .ctas = ctas_});
    frame_->status = buffer.status();
    if (buffer.ok()) part_.buffer = *buffer;
    for (std::size_t i = 0; buffer.ok() && i < part_.runs.size(); ++i)
      part_.iovecs.append(part_.buffer->at(i), part_.runs[i].bytes);
  } else if (lands) {
    part_.to_user = true;
    part_.stores.reserve(extents.size());  // iovecs point into it
    for (const Extent& extent : extents)
      part_.iovecs.append(is_atomic_u64(extent)
                              ? part_.stores.emplace_back(extent.here).value.data()
                              : pointer(extent.here),
                          extent.bytes);
  }
  if (part_.iovecs.empty()) discard(frame_->left);
  part_.bytes = part_.iovecs.bytes_left();
  return true;
}

/// Makes the next bytes land nowhere.
void Receiver::discard(std::uint64_t bytes) {
  scrap_.resize(kScrap);
  part_.iovecs.repeat(scrap_, bytes);
}

/// Discards what is left of the part.
void Receiver::discard_rest() {
  const std::uint64_t left = part_.iovecs.bytes_left();
  part_.iovecs.clear();
  discard(left);
  part_.stores.clear();
  part_.to_user = false;
}

void Receiver::release_revoked() {
  if (!frame_ || frame_->to.use.memory() == nullptr || !frame_->to.of->progress.revoked) return;
  discard_rest();
  release_buffer();
  frame_->to.extents.clear();
  frame_->to.use = {};
}

/// Receives into the part, and beyond it into the buffer. Returns 0 if nothing more is here.
Result<std::size_t> Receiver::receive(bool& readable) {
  if (frame_ && !input_.unparsed().empty()) return land_buffered();
  if (!readable) return std::size_t{0};
  // TLS writes by itself, and a fault in freed memory would end the process.
  const bool in_place = frame_ && (!socket_.is_encrypted() || !part_.to_user);
  const auto left = in_place ? part_.iovecs.left() : std::span<iovec>();
  const auto parts = left.first(std::min(left.size(), kParts));
  into_.assign(parts.begin(), parts.end());
  if (parts.size() == left.size()) into_.push_back(input_.room(socket_.is_encrypted()));
  auto got = socket_.receive(into_);
  if (got.status().code() == Code::unreachable && part_.to_user) {
    frame_->status = got.status();
    discard_rest();
    return receive(readable);
  }
  if (got.ok() && *got == 0) readable = false;
  if (!got.ok() || *got == 0) return got;
  const std::size_t here = in_place ? std::min(*got, part_.iovecs.bytes_left()) : 0;
  if (in_place) (void)part_.iovecs.advance(here);
  input_.received(*got - here);
  return got;
}

/// Moves bytes that were received together with the head to their destination.
std::size_t Receiver::land_buffered() {
  copied_.clear();
  std::span<const std::byte> from = input_.unparsed();
  for (const iovec& to : part_.iovecs.left()) {
    if (from.empty()) break;
    copied_.push_back({.to = reinterpret_cast<std::uintptr_t>(to.iov_base),
                       .from = reinterpret_cast<std::uintptr_t>(from.data()),
                       .bytes = std::min(to.iov_len, from.size())});
    from = from.subspan(copied_.back().bytes);
  }
  const std::size_t bytes = input_.unparsed().size() - from.size();
  if (part_.to_user) {
    if (Status status = copy::copy_within(copied_); !status.ok()) {
      frame_->status = status;
      discard_rest();
    }
  } else {
    for (const copy::Piece& each : copied_)
      std::memcpy(pointer(each.to), pointer(each.from), each.bytes);
  }
  input_.remove(bytes);
  (void)part_.iovecs.advance(bytes);
  return bytes;
}

/// Continues the checksum with the part, which has landed or is about to.
Status Receiver::sum_part() {
  FrameSum& sum = frame_->sum;
  if (part_.buffer != nullptr) {
    for (std::size_t i = 0; i < part_.runs.size(); ++i)
      sum.add(part_.buffer->at(i), part_.runs[i].bytes);
    return {};
  }
  scrap_.resize(kScrap);
  auto store = part_.stores.begin();
  for (const Extent& extent : frame_->to.extents) {
    if (is_atomic_u64(extent)) {
      sum.add((store++)->value.data(), extent.bytes);
      continue;
    }
    for (std::uint64_t at = 0, some = 0; at < extent.bytes; at += some) {
      some = std::min<std::uint64_t>(extent.bytes - at, kScrap);
      const copy::Piece back{.to = reinterpret_cast<std::uintptr_t>(scrap_.data()),
                             .from = extent.here + at,
                             .bytes = some};
      if (Status status = copy::copy_within({&back, 1}); !status.ok()) return status;
      sum.add(scrap_.data(), some);
    }
  }
  return {};
}

/// Finishes a part that has arrived completely.
void Receiver::end_part(std::vector<Answer>& answers) {
  FrameDestination& to = frame_->to;
  Status& status = frame_->status;
  frame_->left -= part_.bytes;
  part_.iovecs.clear();
  // A discarded part has failed before.
  if (frame_->sum.is_summed() && status.ok() && !to.extents.empty()) {
    status = sum_part();
    if (status.ok() && frame_->left == 0 && !frame_->sum.matches())
      status = wrong_sum(to.of->type == FrameType::put ? FrameType::put : FrameType::data);
    if (!status.ok()) {
      part_.stores.clear();
      release_buffer();
    }
  }
  for (const DeferredStore& store : part_.stores)  // after this frame's data and earlier ones
    if (status.ok())
      status = copy::store_u64(store.here, std::bit_cast<std::uint64_t>(store.value));
  part_.stores.clear();
  // The peer gets the answer next, and the owner may then deregister the region.
  if (frame_->left == 0 && part_.buffer == nullptr) to.use = {};
  Status landed = status;
  bool copying = false;
  if (part_.buffer != nullptr) {
    copy::StagingBuffer& buffer = *std::exchange(part_.buffer, nullptr);
    landed = staging_.submit(buffer);
    copying = landed.ok();
    if (copying)
      staged_parts_[buffer.index()] = {
          .of = to.of,
          .use = to.use.memory() != nullptr ? RegionUse(to.use.memory()) : RegionUse(),
          .bytes = part_.bytes};
  }
  if (!copying) report(*to.of, part_.bytes, landed, answers);
  if (frame_->left != 0) return;
  frame_.reset();
  input_.end_frame();
}

void Receiver::release_buffer() noexcept {
  if (part_.buffer != nullptr) staging_.release(*std::exchange(part_.buffer, nullptr));
}

bool Receiver::poll_gpu(std::vector<Answer>& answers) {
  bool moved = false;
  while (copy::StagingBuffer* const done = staging_.next_done()) {
    StagedPart what = std::exchange(staged_parts_[done->index()], {});
    what.use = {};
    const Status status = done->status();
    staging_.release(*done);
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
  release_buffer();
  std::vector<Answer> answers;
  (void)poll_gpu(answers);
  return !needs_polling();
}

}  // namespace linkspan::transport::tcp
