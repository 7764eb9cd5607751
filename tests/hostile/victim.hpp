// tests/hostile/victim.hpp - an Engine that is attacked, in a process of its own.
//
// It listens at a Unix socket and at a TCP port, has memory of each kind for its honest peer and
// some for attackers, takes peers and notifications as a program would, and shares a core with the
// attacker.
// Threads: externally synchronised.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/faults/usage.hpp"
#include "tests/hostile/attack.hpp"

namespace linkspan::test {

/// Bytes of each region of the victim's.
inline constexpr std::uint64_t kVictimBytes = 1u << 20;

/// Variable that makes it log to stderr, which is a full pipe that nothing reads.
inline constexpr const char* kUnreadStderr = "LINKSPAN_TEST_UNREAD_STDERR=1";

/// Regions of the victim's for the honest peer, by kind; the newcomer's; the attacker's.
inline std::string honest_region(const std::string& kind) { return "honest_" + kind; }
inline constexpr const char* kNewcomers = "newcomers";
inline constexpr const char *kBait = "bait", *kExclusiveBait = "exclusive_bait";

class Victim {
 public:
  explicit Victim(const std::vector<std::string>& environment);

  const Target& target() const noexcept { return target_; }
  /// Returns the lowest use within that time, because what has ended may be released a moment
  /// later.
  Usage usage(Duration time, const Usage& enough);
  /// Makes it lack that resource from now on.
  void lack(Attack::Lacks what);
  /// Returns the highest use of memory since the last call, in bytes.
  std::uint64_t most_memory();
  /// Invalidates the exclusive bait, within 5 s, and makes a new one; what is wrong, or nothing.
  std::string invalidate();
  std::string dump();
  /// Closes the Engine with 5 s. OK, and within them, or what is wrong.
  std::string close();

 private:
  const std::unique_ptr<Child> child_;
  Target target_;
};

}  // namespace linkspan::test
