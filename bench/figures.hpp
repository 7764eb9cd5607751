// bench/figures.hpp - what rows of evidence are made of.
//
// Threads: any thread.
#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace linkspan::bench {

inline double rounded(double number) { return std::round(number * 1000) / 1000; }

inline double median(std::vector<double> all) {
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

/// Returns the CPU time of all threads of this process, in user code and in the kernel.
inline double cpu_seconds() {
  rusage use{};
  ::getrusage(RUSAGE_SELF, &use);
  const auto s = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return s(use.ru_utime) + s(use.ru_stime);
}

}  // namespace linkspan::bench
