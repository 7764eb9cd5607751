// engine/router.hpp - one submission as batches that a transport takes.
//
// Pure: blocks or pages and capabilities in, a plan out. It reads Capabilities and never a name.
// On the path of a byte between the user's call and Endpoint::post.
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "transport/transport.hpp"

namespace linkspan::engine {

struct Plan {
  std::vector<Block> blocks;        ///< Cut so that each fits a batch.
  Pages pages;                      ///< Instead; the lists are the user's until keep().
  std::vector<std::uint32_t> kept;  ///< His lists, one behind the other.
  std::vector<std::size_t> ends;  ///< Batch i has the blocks or pages before ends[i]. At least one.

  transport::BatchShape batch(std::size_t i) const;
  void keep();  ///< What is left of the plan outlives the user's lists.
};

Plan make_plan(std::span<const Block> blocks, const transport::Capabilities& limits);
/// Of pages that were checked; pages that are larger than a batch become blocks.
Plan make_plan(const Pages& pages, const transport::Capabilities& limits);

}  // namespace linkspan::engine
