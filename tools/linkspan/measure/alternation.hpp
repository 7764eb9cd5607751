// tools/linkspan/measure/alternation.hpp - the clock: the library and the bare calls take turns.
//
// Blocks of runs: the first one's, the second one's, ..., the first one's again. The first block of
// each is the warm-up and does not count.
// Threads: the main thread.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "linkspan/status.hpp"
#include "linkspan/types.hpp"
#include "tools/linkspan/measure/report.hpp"

namespace linkspan::tool {

/// What is timed.
struct Contestant {
  std::string how{};  ///< In words, for the report.
  std::function<Result<Duration>()> run{};
  /// Around a turn of so many runs. Empty: nothing is to be done.
  std::function<Status(unsigned runs)> begin{};
  std::function<Status()> end{};
  bool ceiling = true;      ///< Else only told of beside it.
  bool same_bytes = false;  ///< It moves those that the library moves, to the same places.
};

struct Alternation {
  unsigned runs = 1;   ///< Of each contender.
  unsigned block = 1;  ///< Of one before it is the next one's turn.
  Duration at_most{};  ///< Then fewer runs, but one of each.
};

using Runs = std::vector<Duration>;

/// Of each contender its runs.
Result<std::vector<Runs>> run_alternating(const Alternation& alternation,
                                          std::span<const Contestant> contestants);

Timing timing_of(Runs runs);

/// The contenders behind the first, beside which `out` is the first one's: the fastest of the
/// ceilings is the row's.
void compare(std::span<const Contestant> contestants, std::vector<Runs> runs, Row& out);

}  // namespace linkspan::tool
