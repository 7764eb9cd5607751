// tools/linkspan/ps/watch.hpp - a table of what the Engines of a user move, from two readings of
// their metrics.
//
// Threads: a value.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/clock.hpp"

namespace linkspan::tool {

class Watch {
 public:
  /// Takes merged metrics (MergedMetrics::text()), and returns the table of the rates since the
  /// metrics before. The first table has no rates.
  std::string table(std::string_view metrics, base::Time now);

 private:
  /// Sums over the samples of one peer.
  struct PeerTotals {
    std::string pid, engine, peer;  // as shown
    double bytes = 0, transfers = 0, seconds = 0, outstanding = 0, queued = 0, failed = 0;
    std::map<std::string, double> bytes_by_path;
  };
  using Reading = std::map<std::string, PeerTotals>;  // by what identifies the peer

  static Reading read(std::string_view metrics);

  Reading before_;
  base::Time at_{};
};

}  // namespace linkspan::tool
