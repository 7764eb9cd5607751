#include "transport/tcp/chunk_staging.hpp"

#include <utility>

#include "base/no_memory.hpp"

namespace linkspan::transport::tcp {

bool ChunkStaging::room(const cuda::Device& device, const Outgoing* shared) const noexcept {
  return staging_.room(device) && std::ranges::none_of(frames_, [shared](const SentFrame& frame) {
           return frame.chunk->of.get() == shared;
         });
}

bool ChunkStaging::submit(ConnectionGroup& group) {
  bool moved = false;
  while (auto chunk = group.next_chunk(this)) {
    moved = true;
    runs_.clear();
    for (const Extent& extent : chunk->extents) runs_.push_back({extent.here, extent.bytes});
    SentFrame& frame = frames_.emplace_back();  // what the GPU copies has a frame
    frame.chunk = *std::move(chunk);
    frame.staged = true;
    frame.status = base::no_memory();  // unless all goes well
    const auto buffer = staging_.acquire(
        {.device = frame.chunk->device, .runs = runs_, .to_gpu = false, .ctas = ctas_});
    if (buffer.ok()) {
      try {
        frame.status = staging_.submit(**buffer);
      } catch (...) {
        staging_.release(**buffer);
        throw;
      }
    } else {
      frame.status = buffer.status();
    }
    if (frame.status.ok()) {
      frame.buffer = *buffer;
      frame.staged = false;
    } else {
      frame.chunk->use = {};  // zeros are sent
    }
  }
  return moved;
}

bool ChunkStaging::poll() {
  bool moved = false;
  while (copy::StagingBuffer* const done = staging_.next_done()) {
    SentFrame& frame = *std::ranges::find(frames_, done, &SentFrame::buffer);
    frame.staged = true;
    frame.status = done->status();
    frame.chunk->use = {};  // its bytes are in the staging buffer
    moved = true;
  }
  return moved;
}

SentFrame ChunkStaging::pop_staged() {
  const auto found = std::ranges::find(frames_, true, &SentFrame::staged);
  SentFrame frame = std::move(*found);
  frames_.erase(found);
  return frame;
}

void ChunkStaging::release(const SentFrame& frame) noexcept {
  if (frame.buffer != nullptr) staging_.release(*frame.buffer);
}

bool ChunkStaging::stop() {
  (void)poll();
  std::erase_if(frames_, [this](const SentFrame& frame) {
    if (frame.staged) release(frame);
    return frame.staged;
  });
  return frames_.empty();
}

}  // namespace linkspan::transport::tcp
