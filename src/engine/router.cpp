#include "engine/router.hpp"

#include <algorithm>

#include "transport/batch.hpp"

namespace linkspan::engine {

transport::BatchShape Plan::batch(std::size_t i) const {
  const std::size_t begin = i == 0 ? 0 : ends[i - 1], count = ends[i] - begin;
  if (pages.local_index.empty()) return std::span(blocks).subspan(begin, count);
  Pages some = pages;
  some.local_index = pages.local_index.subspan(begin, count);
  some.remote_index = pages.remote_index.subspan(begin, count);
  return some;
}

void Plan::keep() {
  if (!kept.empty() || pages.local_index.empty()) return;
  kept.reserve(2 * pages.local_index.size());
  kept.insert(kept.end(), pages.local_index.begin(), pages.local_index.end());
  kept.insert(kept.end(), pages.remote_index.begin(), pages.remote_index.end());
  pages.local_index = std::span(kept).first(kept.size() / 2);
  pages.remote_index = std::span(kept).last(kept.size() / 2);
}

Plan make_plan(std::span<const Block> blocks, const transport::Capabilities& limits) {
  Plan plan;
  plan.blocks.reserve(blocks.size());
  std::uint64_t room = limits.max_batch_bytes, left = limits.max_batch_blocks;
  const auto cut = [&] {
    plan.ends.push_back(plan.blocks.size());
    room = limits.max_batch_bytes;
    left = limits.max_batch_blocks;
  };
  for (Block b : blocks) {
    while (b.bytes != 0) {
      if (room == 0 || left == 0) cut();
      const std::uint64_t now = std::min(b.bytes, room);
      plan.blocks.push_back({b.local_offset, b.remote_offset, now});
      b = {b.local_offset + now, b.remote_offset + now, b.bytes - now};
      room -= now;
      --left;
    }
  }
  plan.ends.push_back(plan.blocks.size());
  return plan;
}

Plan make_plan(const Pages& pages, const transport::Capabilities& limits) {
  const std::size_t count = pages.local_index.size();
  if (count == 0 || pages.page_bytes == 0) return make_plan(std::span<const Block>(), limits);
  if (pages.page_bytes > limits.max_batch_bytes)
    return make_plan(transport::blocks_of(pages), limits);
  Plan plan;
  plan.pages = pages;
  const std::size_t at_once =
      std::min(limits.max_batch_pages, limits.max_batch_bytes / pages.page_bytes);
  for (std::size_t end = 0; end < count;)
    plan.ends.push_back(end += std::min(at_once, count - end));
  return plan;
}

}  // namespace linkspan::engine
