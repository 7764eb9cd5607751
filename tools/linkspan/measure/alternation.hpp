// tools/linkspan/measure/alternation.hpp - the clock: measures contestants in alternating blocks of
// runs.
//
// Contestants are the library and bare calls. The order is: a block of the first, a block of the
// second, ..., a block of the first again. The first block of each is the warm-up and is discarded.
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

/// One of the things that are timed.
struct Contestant {
  std::string how{};  ///< Its description in the report.
  std::function<Result<Duration>()> run{};
  /// Called before and after a block of `runs` runs. May be empty.
  std::function<Status(unsigned runs)> begin{};
  std::function<Status()> end{};
  bool ceiling = true;      ///< False: reported beside the ceiling only.
  bool same_bytes = false;  ///< Moves the library's bytes to the same places.
};

struct Alternation {
  unsigned runs = 1;   ///< Runs of each contestant.
  unsigned block = 1;  ///< Runs of one contestant in a block.
  Duration at_most{};  ///< Time limit; after it fewer runs, but at least one of each.
};

using Runs = std::vector<Duration>;

/// Measures all contestants, and returns the runs of each.
Result<std::vector<Runs>> run_alternating(const Alternation& alternation,
                                          std::span<const Contestant> contestants);

Timing timing_of(Runs runs);

/// Enters the runs of all contestants but the first in `out`, the first one's row. The fastest
/// ceiling becomes the row's ceiling.
void compare(std::span<const Contestant> contestants, std::vector<Runs> runs, Row& out);

}  // namespace linkspan::tool
