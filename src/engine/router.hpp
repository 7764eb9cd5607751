// engine/router.hpp - one submission as batches that a transport takes.
//
// Pure: blocks and capabilities in, a plan out. It reads Capabilities and never a name.
// On the path of a byte between the user's call and Endpoint::post.
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "transport/transport.hpp"

namespace linkspan::engine {

struct Plan {
  std::vector<Block> blocks;      ///< Cut so that each fits a batch.
  std::vector<std::size_t> ends;  ///< Batch i has the blocks before ends[i]. At least one.
  std::span<const Block> batch(std::size_t i) const {
    const std::size_t begin = i == 0 ? 0 : ends[i - 1];
    return std::span(blocks).subspan(begin, ends[i] - begin);
  }
};

Plan make_plan(std::span<const Block> blocks, const transport::Capabilities& limits);

}  // namespace linkspan::engine
