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
  const Status& fatal_error() const noexcept { return fatal_error_; }

 private:
  Status measure(const Pair& pair, const RunPlan& plan, Row& out);
  Contestant by_library(const Pair& pair, std::uint64_t bytes, bool low_latency);
  Result<Contestant> by_bare_code(const Pair& pair, std::uint64_t bytes);
  Result<Duration> round_trip(const Pair& pair, std::uint64_t bytes, bool low_latency,
                              std::uint64_t i);
  Status send_request(const std::string& request);
  Status receive_reply();

  TwoProcesses& both_;
  bool reply_pending_ = false;  // its answer is still to come
  std::uint64_t round_ = 0;     // of the turn
  Status fatal_error_;
};

}  // namespace linkspan::tool
