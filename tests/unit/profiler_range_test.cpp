// Tests a ProfilerRange without a profiler; tests/nvtx_test.py has one.
#include "engine/diagnostics/profiler_range.hpp"

#include <gtest/gtest.h>

namespace linkspan::engine {
namespace profiler_range_test {

TEST(ProfilerRange, EndsOnce_AlsoWhereNoProfilerListens) {
  ProfilerRange range, unused;
  range.begin("write", 8);
  range.end();
  range.end();
  unused.end();
}

}  // namespace profiler_range_test
}  // namespace linkspan::engine
