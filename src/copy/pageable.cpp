#include "copy/pageable.hpp"

#include <cstring>

#include "base/no_memory.hpp"
#include "copy/cma.hpp"

namespace linkspan::copy {
namespace {

void* host(std::uint64_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

/// Where in the slot each piece lies: runs of the GPU's are runs there too.
template <class Each>
void each_piece(const Staging::Slot& slot, const PageableCopies::Chunk& chunk, Each each) {
  std::byte* at = nullptr;
  const Piece* before = nullptr;
  std::size_t run = 0;
  for (const Piece& piece : chunk.pieces) {
    if (before == nullptr || !PageableCopies::joins(*before, piece, chunk.to_gpu))
      at = slot.at(run++);
    each(piece, at);
    at += piece.bytes;
    before = &piece;
  }
}

}  // namespace

/// Copies all pieces between the slot and host memory.
Status PageableCopies::copy(const Staging::Slot& slot, const Chunk& chunk) {
  guarded_.clear();
  each_piece(slot, chunk, [&](const Piece& piece, std::byte* at) {
    const auto in_slot = reinterpret_cast<std::uintptr_t>(at);
    const Piece copied{.to = chunk.to_gpu ? in_slot : piece.to,
                       .from = chunk.to_gpu ? piece.from : in_slot,
                       .bytes = piece.bytes};
    if (chunk.guarded)
      guarded_.push_back(copied);
    else
      std::memcpy(host(copied.to), host(copied.from), copied.bytes);
  });
  return copy_within(guarded_);
}

Status PageableCopies::begin(const Chunk& chunk) {
  runs_.clear();
  const Piece* before = nullptr;
  for (const Piece& piece : chunk.pieces) {
    if (before != nullptr && joins(*before, piece, chunk.to_gpu))
      runs_.back().bytes += piece.bytes;
    else
      runs_.push_back({chunk.to_gpu ? piece.to : piece.from, piece.bytes});
    before = &piece;
  }
  auto slot = staging_.take(
      {.device = chunk.device, .runs = runs_, .to_gpu = chunk.to_gpu, .ctas = chunk.ctas});
  if (!slot.ok()) return slot.status();
  if (chunk.to_gpu)
    if (Status status = base::or_no_memory([&] { return copy(**slot, chunk); }); !status.ok()) {
      staging_.release(**slot);
      return status;
    }
  chunks_[(*slot)->index()] = chunk;
  return staging_.submit(**slot);
}

std::optional<PageableCopies::Ended> PageableCopies::end_one() {
  Staging::Slot* const slot = staging_.next_done();
  if (slot == nullptr) return std::nullopt;
  const Chunk& chunk = chunks_[slot->index()];
  Ended ended{chunk.cookie, base::or_no_memory([&] { return slot->status(); })};
  if (!chunk.to_gpu && ended.status.ok())
    ended.status = base::or_no_memory([&] { return copy(*slot, chunk); });
  staging_.release(*slot);
  return ended;
}

}  // namespace linkspan::copy
