#include "copy/pageable.hpp"

#include <cstring>

#include "base/no_memory.hpp"
#include "copy/cma.hpp"

namespace linkspan::copy {
namespace {

void* host(std::uint64_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

/// Calls `each` with every piece and its place in the buffer. Runs of the GPU are runs there too.
template <class Each>
void each_piece(const StagingBuffer& buffer, const PageableCopies::PageableChunk& chunk,
                Each each) {
  std::byte* at = nullptr;
  const Piece* before = nullptr;
  std::size_t run = 0;
  for (const Piece& piece : chunk.pieces) {
    if (before == nullptr || !PageableCopies::joins(*before, piece, chunk.order->to_gpu))
      at = buffer.at(run++);
    each(piece, at);
    at += piece.bytes;
    before = &piece;
  }
}

}  // namespace

/// Copies all pieces between the buffer and host memory.
Status PageableCopies::copy(const StagingBuffer& buffer, const PageableChunk& chunk) {
  guarded_.clear();
  each_piece(buffer, chunk, [&](const Piece& piece, std::byte* at) {
    const auto in_buffer = reinterpret_cast<std::uintptr_t>(at);
    const bool to_gpu = chunk.order->to_gpu;
    const Piece copied{.to = to_gpu ? in_buffer : piece.to,
                       .from = to_gpu ? piece.from : in_buffer,
                       .bytes = piece.bytes};
    if (chunk.order->guarded)
      guarded_.push_back(copied);
    else
      std::memcpy(host(copied.to), host(copied.from), copied.bytes);
  });
  return copy_within(guarded_);
}

Status PageableCopies::begin(const PageableChunk& chunk) {
  const Order& order = *chunk.order;
  runs_.clear();
  const Piece* before = nullptr;
  for (const Piece& piece : chunk.pieces) {
    if (before != nullptr && joins(*before, piece, order.to_gpu))
      runs_.back().bytes += piece.bytes;
    else
      runs_.push_back({order.to_gpu ? piece.to : piece.from, piece.bytes});
    before = &piece;
  }
  auto buffer = staging_.acquire(
      {.device = order.device, .runs = runs_, .to_gpu = order.to_gpu, .ctas = order.ctas});
  if (!buffer.ok()) return buffer.status();
  if (order.to_gpu)
    if (Status status = base::or_no_memory([&] { return copy(**buffer, chunk); }); !status.ok()) {
      staging_.release(**buffer);
      return status;
    }
  chunks_[(*buffer)->index()] = chunk;
  return staging_.submit(**buffer);
}

std::optional<PageableCopies::Ended> PageableCopies::end_one() {
  StagingBuffer* const buffer = staging_.next_done();
  if (buffer == nullptr) return std::nullopt;
  const PageableChunk& chunk = chunks_[buffer->index()];
  Ended ended{chunk.cookie, base::or_no_memory([&] { return buffer->status(); })};
  if (!chunk.order->to_gpu && ended.status.ok())
    ended.status = base::or_no_memory([&] { return copy(*buffer, chunk); });
  staging_.release(*buffer);
  return ended;
}

}  // namespace linkspan::copy
