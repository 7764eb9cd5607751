#include "engine/router.hpp"

#include <algorithm>

namespace linkspan::engine {

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

}  // namespace linkspan::engine
