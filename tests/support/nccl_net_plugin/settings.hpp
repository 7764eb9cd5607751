// tests/support/nccl_net_plugin/settings.hpp - what the environment says (plugin.hpp), and what is
// left to chance.
//
// Threads: Settings: immutable after construction. Failures: externally synchronised.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <random>
#include <string>

#include "linkspan/status.hpp"

namespace linkspan::nccl_test {

using Random = std::mt19937_64;
using Clock = std::chrono::steady_clock;

enum class ListFault { none, short_by_one, lost, overlap, outside, beyond };

struct Settings {
  std::string address = "127.0.0.1";
  std::uint64_t seed = 1, fragment = 4030, null_percent = 0, null_comms = 0;
  std::uint64_t corrupt = 0, die_after = 0;  // 0: none
  std::chrono::microseconds delay{0}, call{0};
  std::string failing;  // a function
  std::uint64_t failing_at = 0;
  int failing_result = 0;
  std::string stalling, stalls_while;  // a function; a file
  ListFault list = ListFault::none;
  std::uint64_t list_at = 0;

  /// Reads the environment. invalid_argument names the variable.
  static Result<Settings> from_environment();
};

/// Counts calls of the function that is to fail.
class Failures {
 public:
  /// Returns the result that this call must answer; 0: its own.
  int of(const Settings& settings, const char* function) {
    if (settings.stalling == function) stall(settings);
    if (settings.failing != function) return 0;
    ++calls_;
    return settings.failing_at == 0 || settings.failing_at == calls_ ? settings.failing_result : 0;
  }

 private:
  static void stall(const Settings& settings);

  std::uint64_t calls_ = 0;
};

}  // namespace linkspan::nccl_test
