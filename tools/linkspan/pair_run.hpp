// tools/linkspan/pair_run.hpp - one pair of memories: moves bytes, verifies, measures.
//
// Data first: a list of blocks of odd sizes at odd offsets with what lies around them watched, then
// the transfer of each size. Then the clock: library and bare call take turns.
// Threads: externally synchronised.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "tools/linkspan/report.hpp"
#include "tools/linkspan/two_processes.hpp"

namespace linkspan::tool {

/// No region is smaller: room for the blocks that are verified.
inline constexpr std::uint64_t kLeastRegion = std::uint64_t{4} << 20;

inline constexpr const char* kTimeIsOver = "the time that --limit gives is over";

/// How one size is measured.
struct RunPlan {
  std::uint64_t bytes = 0;
  unsigned runs = 1;
  unsigned block = 1;    ///< Runs of one before it is the other's turn.
  unsigned depth = 1;    ///< Row::depth
  bool latency = false;  ///< Row::latency
  bool verify = true, ceiling = true;
  Duration at_most = std::chrono::seconds(4);  ///< Of measuring; then fewer runs.
};

class PairRun {
 public:
  /// `both` outlives it. `deadline` is of all that it runs.
  PairRun(TwoProcesses& both, base::Deadline deadline) : both_(both), deadline_(deadline) {}

  /// Blocks of odd sizes arrive where they should, and nothing else changes.
  Status verify_blocks(const Pair& pair);
  /// A failure is in the row; so is that of `before`, with which nothing is run.
  Row run(const Pair& pair, const RunPlan& plan, const Status& before);
  /// Which way `bytes` bytes in one block go.
  Result<Explanation> explain(const Pair& pair, std::uint64_t bytes) const;
  /// Nothing more can be run: the second process is lost, or the memory of a transfer is not free.
  const Status& lost() const noexcept { return lost_; }

 private:
  Status verify_spans(const Pair& pair);
  Status verify_whole(const Pair& pair, const RunPlan& plan);
  Status measure(const Pair& pair, const RunPlan& plan, Row& out);
  Status note(Status status);

  /// `blocks` in so many transfers, from before the first submission until all are seen to be
  /// quiet.
  Result<Duration> transfer(const Pair& pair, std::span<const Block> blocks, unsigned transfers);
  Status fill(const Pair& pair, bool source, std::uint64_t offset, std::uint64_t bytes,
              std::uint64_t seed, std::uint64_t from);
  Status check(const Pair& pair, std::uint64_t offset, std::uint64_t bytes, std::uint64_t seed,
               std::uint64_t from);
  Status ask(const char* verb, const Pair& pair, std::uint64_t offset, std::uint64_t bytes,
             std::uint64_t seed, std::uint64_t from);

  TwoProcesses& both_;
  const base::Deadline deadline_;
  std::uint64_t seed_ = 0;
  std::vector<Transfer> under_way_;  // of transfer(), which is to allocate nothing
  Status lost_;
};

}  // namespace linkspan::tool
