#include "transport/tcp/encoded_frame_queue.hpp"

#include <utility>

#include "transport/tcp/frame.hpp"

namespace linkspan::transport::tcp {

void EncodedFrameQueue::push(EncodedFrames frames) {
  const base::MutexLock lock(mutex_);
  const std::size_t count = frames.frames;
  queued_.push_back(std::move(frames));
  frames_ += count;
  idle_ = false;
}

std::vector<std::byte> EncodedFrameQueue::pop(bool one) {
  const base::MutexLock lock(mutex_);
  std::vector<std::byte> bytes;
  while (!queued_.empty() && (bytes.empty() || (!one && bytes.size() < kMaxHead))) {
    const EncodedFrames& first = queued_.front();
    bytes.insert(bytes.end(), first.bytes.begin(), first.bytes.end());
    frames_ -= first.frames;
    queued_.pop_front();
  }
  return bytes;
}

bool EncodedFrameQueue::is_full() const {
  if (idle_) return false;
  const base::MutexLock lock(mutex_);
  return frames_ >= kMaxFrames;
}

void EncodedFrameQueue::set_idle_if_empty(bool idle) {
  const base::MutexLock lock(mutex_);
  idle_ = idle && queued_.empty();
}

}  // namespace linkspan::transport::tcp
