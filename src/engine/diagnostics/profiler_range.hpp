// engine/diagnostics/profiler_range.hpp - a transfer as a profiler shows it: an NVTX range from its
// submission to its end, in the domain "linkspan".
//
// On the path of a byte if LINKSPAN_NVTX is 1; without a profiler that costs two calls that return
// at once.
// Threads: begin() and end() may be called by different threads, one after the other.
#pragma once

#include <cstdint>

namespace linkspan::engine {

class ProfilerRange {
 public:
  /// Returns whether this build has NVTX. Without it begin() does nothing.
  static bool available() noexcept;

  ProfilerRange() = default;
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;
  ~ProfilerRange() { end(); }

  /// `name` and the bytes, as its payload, are what the profiler shows. Called once.
  void begin(const char* name, std::uint64_t bytes) noexcept;
  void end() noexcept {
    if (id_ != 0) end_at_profiler();
  }

 private:
  void end_at_profiler() noexcept;

  std::uint64_t id_ = 0;  // 0: no range, or no profiler
};

}  // namespace linkspan::engine
