#include "bench/bare/staged_copy.hpp"

#include <algorithm>
#include <cstring>

namespace linkspan::bare {

Result<std::unique_ptr<StagedCopy>> StagedCopy::create(const cuda::Device& device, unsigned threads,
                                                       std::uint64_t slot_bytes) {
  auto scope = device.enter();
  if (!scope.ok()) return scope.status();
  std::vector<Lane> lanes;
  for (unsigned i = 0; i < threads; ++i) {
    auto stream = cuda::Stream::create(*scope);
    if (!stream.ok()) return stream.status();
    auto slots = cuda::PinnedBuffer::create(*scope, kSlots * slot_bytes);
    if (!slots.ok()) return slots.status();
    auto word = EndWord::create(*scope);
    if (!word.ok()) return word.status();
    lanes.push_back({*std::move(stream), *std::move(slots), *std::move(word)});
  }
  return std::unique_ptr<StagedCopy>(new StagedCopy(device, slot_bytes, std::move(lanes)));
}

StagedCopy::StagedCopy(const cuda::Device& device, std::uint64_t slot_bytes,
                       std::vector<Lane> lanes)
    : device_(device),
      slot_bytes_(slot_bytes),
      lanes_(std::move(lanes)),
      begin_(static_cast<std::ptrdiff_t>(lanes_.size() + 1)),
      end_(static_cast<std::ptrdiff_t>(lanes_.size() + 1)) {
  for (Lane& lane : lanes_) threads_.emplace_back([this, &lane] { serve(lane); });
}

StagedCopy::~StagedCopy() {
  job_ = {};
  begin_.arrive_and_wait();
}

Result<Duration> StagedCopy::run(bool to_gpu, cuda::CUdeviceptr gpu, std::byte* host,
                                 std::uint64_t bytes, Duration limit) {
  const auto begin = Clock::now();
  job_ = {to_gpu, gpu, host, bytes, begin + limit};
  next_ = 0;
  begin_.arrive_and_wait();
  end_.arrive_and_wait();
  const Duration took = Clock::now() - begin;
  for (const Lane& lane : lanes_)
    if (!lane.status.ok()) return lane.status;
  return took;
}

void StagedCopy::serve(Lane& lane) {
  for (;;) {
    begin_.arrive_and_wait();
    if (job_.host == nullptr) return;
    lane.status = work(lane);
    end_.arrive_and_wait();
  }
}

/// The slots are a ring of chunks under way. Towards the GPU a slot is filled, then copied from;
/// from the GPU it is copied to, and emptied when its turn comes again.
Status StagedCopy::work(Lane& lane) {
  auto scope = device_.enter();
  if (!scope.ok()) return scope.status();
  const std::uint64_t before = lane.sent;
  std::array<std::uint64_t, kSlots> offsets{};
  const auto retire = [&](std::uint64_t number) {
    if (Status s = lane.word.wait(*scope, lane.stream, number, job_.limit); !s.ok()) return s;
    const std::uint64_t slot = number % kSlots, offset = offsets[slot];
    if (!job_.to_gpu)
      std::memcpy(job_.host + offset, lane.slots.data() + slot * slot_bytes_,
                  std::min(slot_bytes_, job_.bytes - offset));
    return Status();
  };
  std::uint64_t retired = before;
  for (;;) {
    const std::uint64_t offset = next_.fetch_add(slot_bytes_);
    if (offset >= job_.bytes) break;
    if (lane.sent - retired == kSlots)
      if (Status s = retire(++retired); !s.ok()) return s;
    offsets[(lane.sent + 1) % kSlots] = offset;
    if (Status s = issue(*scope, lane, offset); !s.ok()) return s;
  }
  while (retired != lane.sent)
    if (Status s = retire(++retired); !s.ok()) return s;
  return {};
}

Status StagedCopy::issue(const cuda::DeviceScope& scope, Lane& lane, std::uint64_t offset) {
  const std::uint64_t at = (lane.sent + 1) % kSlots * slot_bytes_;
  const std::uint64_t bytes = std::min(slot_bytes_, job_.bytes - offset);
  const cuda::CUdeviceptr slot = lane.slots.device_address() + at, gpu = job_.gpu + offset;
  if (job_.to_gpu) std::memcpy(lane.slots.data() + at, job_.host + offset, bytes);
  Status copied =
      lane.stream.copy(scope, job_.to_gpu ? gpu : slot, job_.to_gpu ? slot : gpu, bytes);
  if (!copied.ok()) return copied;
  return lane.word.write(scope, lane.stream, ++lane.sent);
}

}  // namespace linkspan::bare
