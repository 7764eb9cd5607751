// tools/linkspan/bench/baseline.hpp - compares a Report with the JSON of an earlier run.
//
// Threads: values.
#pragma once

#include <string>
#include <vector>

#include "tools/linkspan/measure/report.hpp"

namespace linkspan::tool {

class Baseline {
 public:
  /// Reads a file that --json wrote, or one of evidence/. invalid_argument: neither.
  static Result<Baseline> read(const std::string& file);

  /// Returns a table of the rows that both have, and the ids of rows that only one has.
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
