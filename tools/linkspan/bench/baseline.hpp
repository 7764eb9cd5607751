// tools/linkspan/bench/baseline.hpp - what changed against an earlier run's JSON.
//
// Threads: values.
#pragma once

#include <string>
#include <vector>

#include "tools/linkspan/measure/report.hpp"

namespace linkspan::tool {

class Baseline {
 public:
  /// A file that --json wrote, or one of evidence/. invalid_argument: it is none.
  static Result<Baseline> read(const std::string& file);

  /// A table of the rows that both have, and the names of those that one of them has.
  std::string against(const Report& report) const;

 private:
  struct Known {
    std::string id, unit;
    double value = 0, ratio = 0;  ///< Zero: not measured.
  };
  std::vector<Known> rows_;
  std::string title_;
};

}  // namespace linkspan::tool
