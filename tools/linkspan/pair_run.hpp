// tools/linkspan/pair_run.hpp - one pair of memories: moves bytes, verifies, measures.
//
// Data first: a list of blocks of odd sizes at odd offsets with what lies around them watched, then
// the large transfer. Then the clock: library and bare call take turns.
// Threads: externally synchronised.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/clock.hpp"
#include "linkspan/peer.hpp"
#include "tools/linkspan/ceiling.hpp"
#include "tools/linkspan/child_process.hpp"
#include "tools/linkspan/demo_report.hpp"
#include "tools/linkspan/memories.hpp"

namespace linkspan::tool {

/// No region of the demo is smaller: room for the blocks that are verified.
inline constexpr std::uint64_t kLeastRegion = std::uint64_t{4} << 20;

class PairRun {
 public:
  /// All outlive it. `deadline` is the whole demo's.
  PairRun(ChildProcess& child, const Peer& peer, Ceilings& ceilings, base::Deadline deadline)
      : child_(child), peer_(peer), ceilings_(ceilings), deadline_(deadline) {}

  /// A failure of the pair is in the report.
  PairReport run(Op op, Memory& local, const Far& far, std::uint64_t bytes);
  /// Nothing more can be run: the second process is lost, or the memory of a transfer is not free.
  const Status& lost() const noexcept { return lost_; }

 private:
  struct Pair {
    const Op op;
    Memory& local;
    const Far& far;
    bool to_far() const noexcept { return op == Op::write; }
  };

  Status explain(const Pair& pair, PairReport& out);
  Status verify_blocks(const Pair& pair);
  Status verify_whole(const Pair& pair, std::uint64_t bytes);
  Status measure(const Pair& pair, PairReport& out);
  Status measure_rate(const Pair& pair, Ceiling& ceiling, PairReport& out);
  Status measure_latency(const Pair& pair, Ceiling& ceiling, PairReport& out);

  /// From submission until it is seen to be quiet.
  Result<Duration> transfer(const Pair& pair, std::span<const Block> blocks);
  Status fill(const Pair& pair, bool source, std::uint64_t offset, std::uint64_t bytes,
              std::uint64_t seed, std::uint64_t from);
  Status check(const Pair& pair, std::uint64_t offset, std::uint64_t bytes, std::uint64_t seed,
               std::uint64_t from);
  Status ask(const char* verb, const Pair& pair, std::uint64_t offset, std::uint64_t bytes,
             std::uint64_t seed, std::uint64_t from);

  ChildProcess& child_;
  const Peer& peer_;
  Ceilings& ceilings_;
  const base::Deadline deadline_;
  std::uint64_t seed_ = 0;
  Status lost_;
};

}  // namespace linkspan::tool
