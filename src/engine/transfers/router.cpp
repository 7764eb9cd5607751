#include "engine/transfers/router.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "transport/batch.hpp"

namespace linkspan::engine {
namespace {

/// Cuts `pieces` of one size into batches of at most `most`, which are equally large: the last one
/// would else be a launch for little.
Plan in_batches(std::uint64_t pieces, std::uint64_t piece_bytes, std::uint64_t most,
                const transport::Capabilities& limits) {
  Plan plan;
  plan.pieces = pieces;
  plan.piece_bytes = piece_bytes;
  plan.batches = (pieces - 1) / std::min(most, limits.max_batch_bytes / piece_bytes) + 1;
  plan.pieces_per_batch = (pieces - 1) / plan.batches + 1;
  return plan;
}

}  // namespace

transport::BatchShape Plan::batch(std::size_t i, std::vector<Block>& scratch) const {
  if (pieces_per_batch == 0) {
    const std::size_t begin = i == 0 ? 0 : ends[i - 1];
    const std::size_t end = i < ends.size() ? ends[i] : blocks.size();
    return std::span(blocks).subspan(begin, end - begin);
  }
  const std::uint64_t begin = first(i), count = std::min(pieces_per_batch, pieces - begin);
  if (pieces == 1 && pages.local_index.empty()) {
    scratch.assign(1, {strides.local_base, strides.remote_base, strides.bytes});
    return scratch;
  }
  if (pages.local_index.empty()) {
    transport::some_blocks(strides, begin, count, piece_bytes, scratch);
    return scratch;
  }
  Pages some = pages;
  some.local_index = pages.local_index.subspan(begin, count);
  some.remote_index = pages.remote_index.subspan(begin, count);
  return some;
}

void Plan::keep() {
  if (!kept.empty() || pages.local_index.empty() || pages.indices_on_gpu) return;
  kept.reserve(2 * pages.local_index.size());
  kept.insert(kept.end(), pages.local_index.begin(), pages.local_index.end());
  kept.insert(kept.end(), pages.remote_index.begin(), pages.remote_index.end());
  pages.local_index = std::span(kept).first(kept.size() / 2);
  pages.remote_index = std::span(kept).last(kept.size() / 2);
}

Plan make_plan(std::vector<Block> blocks, const transport::Capabilities& limits) {
  Plan plan;
  std::erase_if(blocks, [](const Block& b) { return b.bytes == 0; });
  const transport::BatchSummary size = transport::summary_of(blocks);
  if (size.blocks <= limits.max_batch_blocks && size.bytes <= limits.max_batch_bytes) {
    plan.blocks = std::move(blocks);
    return plan;
  }
  plan.blocks.reserve(blocks.size());
  std::uint64_t room = limits.max_batch_bytes, left = limits.max_batch_blocks;
  for (Block b : blocks) {
    while (b.bytes != 0) {
      if (room == 0 || left == 0) {
        plan.ends.push_back(plan.blocks.size());
        room = limits.max_batch_bytes;
        left = limits.max_batch_blocks;
      }
      const std::uint64_t now = std::min(b.bytes, room);
      plan.blocks.push_back({b.local_offset, b.remote_offset, now});
      b = {b.local_offset + now, b.remote_offset + now, b.bytes - now};
      room -= now;
      --left;
    }
  }
  plan.batches = plan.ends.size() + 1;
  return plan;
}

Plan make_plan(const Pages& pages, const transport::Capabilities& limits) {
  const std::size_t count = pages.local_index.size();
  if (count == 0 || pages.page_bytes == 0) return make_plan(std::vector<Block>(), limits);
  if (pages.page_bytes > limits.max_batch_bytes)
    return make_plan(transport::blocks_of(pages), limits);
  Plan plan = in_batches(count, pages.page_bytes, limits.max_batch_pages, limits);
  plan.pages = pages;
  return plan;
}

Result<Plan> make_plan(const Pages& pages, std::span<const std::uint32_t> positions,
                       const transport::Capabilities& limits) {
  const std::size_t most = pages.local_index.size(), count = positions.size();
  if (count != 0 && pages.page_bytes > ~std::uint64_t{0} / count)
    return Status(Code::invalid_argument, Scope::request,
                  std::to_string(count) + " pages of " + std::to_string(pages.page_bytes) +
                      " bytes in one transfer");
  std::vector<std::uint32_t> kept(2 * count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t at = positions[i];
    if (at >= most)
      return Status(Code::invalid_argument, Scope::request,
                    "position " + std::to_string(at) + " of " + std::to_string(most) +
                        " prepared pages, as number " + std::to_string(i) + " of the subset");
    kept[i] = pages.local_index[at];
    kept[count + i] = pages.remote_index[at];
  }
  Pages some = pages;
  some.local_index = std::span(kept).first(count);
  some.remote_index = std::span(kept).last(count);
  Plan plan = make_plan(some, limits);
  plan.kept = std::move(kept);
  plan.checked = true;
  return plan;
}

Plan make_plan(const Strides& given, const transport::Capabilities& limits) {
  const Strides strides = transport::merged(given);
  const transport::BatchSummary shape = transport::summary_of(strides);
  if (shape.blocks == 0) return make_plan(std::vector<Block>(), limits);
  if (shape.blocks == 1 && shape.bytes <= limits.max_batch_bytes) {  // without a division
    Plan plan;
    plan.strides = strides;
    plan.pieces = plan.pieces_per_batch = 1;
    plan.piece_bytes = shape.bytes;
    return plan;
  }
  const std::uint64_t most = std::min(strides.bytes, limits.max_batch_bytes);
  const std::uint64_t parts = strides.bytes / most + (strides.bytes % most != 0);
  Plan plan = in_batches(shape.blocks * parts, most, limits.max_batch_blocks, limits);
  plan.strides = strides;
  return plan;
}

}  // namespace linkspan::engine
