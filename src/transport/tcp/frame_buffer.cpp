#include "transport/tcp/frame_buffer.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace linkspan::transport::tcp {
namespace {

constexpr std::size_t kLittle = 8u << 10;  // some heads, or one with small data

}  // namespace

void FrameBuffer::expect_seals(const base::MacKey& key) {
  verifier_.emplace(key);
  bytes_.resize(kMaxHead + kMaxChunk + base::kMacTagBytes);
}

iovec FrameBuffer::room(bool data_goes_through_it) noexcept {
  if (begin_ != 0) std::memmove(bytes_.data(), bytes_.data() + begin_, end_ - begin_);
  end_ -= std::exchange(begin_, 0);
  const std::size_t room = bytes_.size() - end_;
  const bool whole = data_goes_through_it || verifier_;
  return {bytes_.data() + end_, whole ? room : std::min(room, kLittle)};
}

Result<std::optional<Head>> FrameBuffer::next_head() {
  using Next = std::optional<Head>;
  const auto size = head_bytes(unparsed());
  if (!size.ok()) return size.status();
  if (!*size || unparsed().size() < **size) return Next();
  auto head = decode(unparsed().first(**size));
  if (!head.ok()) return head.status();
  const auto whole = check_seal(**size + head->data);
  if (!whole.ok()) return whole.status();
  if (!*whole) return Next();
  if (head->incarnation != peer_)
    return Status(Code::corrupt, Scope::peer, "a frame of another Engine");
  remove(**size);
  if (head->data == 0) end_frame();
  return Next(*std::move(head));
}

/// Verifies the seal of the next frame, which has `frame` bytes. Returns false if it is not wholly
/// here.
Result<bool> FrameBuffer::check_seal(std::uint64_t frame) {
  if (!verifier_) return true;
  if (unparsed().size() < frame + base::kMacTagBytes) return false;
  verifier_->update(unparsed().first(frame));
  const auto seal = verifier_->finish();
  if (!seal.ok()) return seal.status();
  if (!base::same_secret(*seal, unparsed().subspan(frame, base::kMacTagBytes)))
    return Status(Code::corrupt, Scope::peer, "a frame whose seal is not its own");
  return true;
}

}  // namespace linkspan::transport::tcp
