// tools/linkspan/bench/notify_run.hpp - measures a write with a notification, until the peer has
// both.
//
// Both processes poll without pause. This one writes and waits for the other's answer, an equal
// write back: half of the round trip is one way. Bare code does the same in alternation, at offsets
// of its own, so the library's data can be verified afterwards.
// Threads: externally synchronised.
#pragma once

#include "tools/linkspan/measure/pair_run.hpp"
#include "tools/linkspan/pair/two_processes.hpp"

namespace linkspan::tool {

class NotifyRun {
 public:
  /// `both` outlives it.
  explicit NotifyRun(TwoProcesses& both) : both_(both) {}

  /// Returns the row, with a failure in it. The pair writes between two memories of GPUs.
  Row run(const Pair& pair, const RunPlan& plan);
  /// Returns what PairRun::fatal_error() does.
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
  bool reply_pending_ = false;  // a reply is outstanding
  std::uint64_t round_ = 0;     // in the current block
  Status fatal_error_;
};

}  // namespace linkspan::tool
