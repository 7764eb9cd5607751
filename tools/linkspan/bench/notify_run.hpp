// tools/linkspan/bench/notify_run.hpp - a write with a notification: how long until it is in the
// peer's hands.
//
// Both processes look without a pause. The first one writes and waits for the answer, which is the
// same the other way: half of a round trip is one way. Bare code does the like in turns with it, in
// places of its own, so that what arrived by the library is seen afterwards.
// Threads: externally synchronised.
#pragma once

#include "tools/linkspan/measure/pair_run.hpp"
#include "tools/linkspan/pair/two_processes.hpp"

namespace linkspan::tool {

class NotifyRun {
 public:
  /// `both` outlives it.
  explicit NotifyRun(TwoProcesses& both) : both_(both) {}

  /// A failure is in the row. The pair writes, and both memories are a GPU's.
  Row run(const Pair& pair, const RunPlan& plan);
  /// As PairRun::lost().
  const Status& lost() const noexcept { return lost_; }

 private:
  Status measure(const Pair& pair, const RunPlan& plan, Row& out);
  Contender by_library(const Pair& pair, std::uint64_t bytes, bool low_latency);
  Result<Contender> by_bare_code(const Pair& pair, std::uint64_t bytes);
  Result<Duration> round(const Pair& pair, std::uint64_t bytes, bool low_latency, std::uint64_t i);
  Status tell(const std::string& request);
  Status answer();

  TwoProcesses& both_;
  bool told_ = false;        // its answer is still to come
  std::uint64_t round_ = 0;  // of the turn
  Status lost_;
};

}  // namespace linkspan::tool
