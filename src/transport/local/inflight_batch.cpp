#include "transport/local/inflight_batch.hpp"

#include <algorithm>

namespace linkspan::transport::local {
namespace {

/// The most pieces in one order. For the kernel, this many fit one list, however they are cut.
constexpr std::size_t kWaveCopies = 128, kWaveKernel = 8192;

}  // namespace

copy::Piece piece_of(Op op, std::uint64_t here, std::uint64_t there, const Block& block) noexcept {
  copy::Piece piece{
      .to = there + block.remote_offset, .from = here + block.local_offset, .bytes = block.bytes};
  if (op == Op::read) std::swap(piece.to, piece.from);
  return piece;
}

bool LocalCopy::by_gpu() const noexcept {
  return method == copy::Method::copy_engine || method == copy::Method::sm_kernel;
}

std::span<const copy::Piece> LocalCopy::next_pieces() const noexcept {
  const std::span<const copy::Piece> rest = std::span(pieces).subspan(next);
  if (!by_gpu()) return rest;
  return rest.first(
      std::min(rest.size(), method == copy::Method::sm_kernel ? kWaveKernel : kWaveCopies));
}

void LocalCopy::started(copy::Ticket accepted, std::size_t count) {
  ticket = accepted;
  next += count;
  blocks_with_copier = count + pages.to_index.size() * (1 + pages.more.size());
  pages = {};
}

void LocalCopy::keep_indices() {
  if (pages.to_list != 0) return;
  const std::size_t each = pages.to_index.size();
  indices.clear();
  indices.reserve(2 * each * pages.lists());
  const auto kept = [&](const std::uint32_t* list) {
    return &*indices.insert(indices.end(), list, list + each);
  };
  pages.to_index = {kept(pages.to_index.data()), each};
  pages.from_index = {kept(pages.from_index.data()), each};
  for (std::size_t i = 1; i < pages.lists(); ++i) {
    more[i - 1].to_index = kept(more[i - 1].to_index);
    more[i - 1].from_index = kept(more[i - 1].from_index);
  }
}

void LocalInflightBatch::place(std::uint64_t here, std::uint64_t there,
                               std::span<const Block> from_blocks) {
  local_copy.pieces.reserve(from_blocks.size());
  for (const Block& block : from_blocks)
    local_copy.pieces.push_back(piece_of(op, here, there, block));
}

void LocalInflightBatch::place_blocks(std::uint64_t here, std::uint64_t there, const Pages& pages) {
  std::uint64_t to = there + pages.remote_base, from = here + pages.local_base;
  std::span<const std::uint32_t> to_index = pages.remote_index, from_index = pages.local_index;
  if (op == Op::read) {
    std::swap(to, from);
    std::swap(to_index, from_index);
  }
  for (std::size_t i = 0; i < to_index.size(); ++i)
    local_copy.pieces.push_back({.to = to + to_index[i] * pages.page_bytes,
                                 .from = from + from_index[i] * pages.page_bytes,
                                 .bytes = pages.page_bytes});
}

void LocalInflightBatch::place_further(std::uint64_t here, std::uint64_t there, const Pages& pages,
                                       bool own_lists) {
  copy::FurtherPages added{
      .bases = {.to = there + pages.remote_base, .from = here + pages.local_base}};
  if (own_lists) {
    added.to_index = pages.remote_index.data();
    added.from_index = pages.local_index.data();
  }
  if (op == Op::read) {
    std::swap(added.bases.to, added.bases.from);
    std::swap(added.to_index, added.from_index);
  }
  local_copy.more.push_back(added);
}

void LocalInflightBatch::place(std::uint64_t here, std::uint64_t there, const Pages& from_pages,
                               const Batch& batch) {
  copy::PageList& list = local_copy.pages;
  list = {
      .to = there + from_pages.remote_base,
      .from = here + from_pages.local_base,
      .page_bytes = from_pages.page_bytes,
      .to_index = from_pages.remote_index,
      .from_index = from_pages.local_index,
      .to_last = last_page(from_pages.remote_base, from_pages.page_bytes, remote->key().bytes),
      .from_last = last_page(from_pages.local_base, from_pages.page_bytes, target->region->bytes()),
      .first = batch.first,
      .more = local_copy.more};
  if (from_pages.indices_on_gpu) {
    list.to_list = reinterpret_cast<std::uintptr_t>(from_pages.remote_index.data());
    list.from_list = reinterpret_cast<std::uintptr_t>(from_pages.local_index.data());
  }
  const auto* const kept = static_cast<const PinnedPages*>(batch.kept);
  if (kept != nullptr && list.lists() == 1) {
    const std::uint64_t skipped = batch.first * sizeof(std::uint32_t);
    list.to_list = kept->remote + skipped;
    list.from_list = kept->local + skipped;
  }
  if (op == Op::read) {
    std::swap(list.to, list.from);
    std::swap(list.to_index, list.from_index);
    std::swap(list.to_list, list.from_list);
    std::swap(list.to_last, list.from_last);
  }
}

}  // namespace linkspan::transport::local
