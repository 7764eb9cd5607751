// tests/hostile/honest.hpp - a peer that keeps the rules while others do not: it moves bytes to and
// from the victim all the time, verifies each, and records how long it waited. Its paths: "unix",
// memory that both map; "asked", memory of the victim that only the victim copies; "gpu", if there
// is one; "tcp".
//
// Threads: externally synchronised.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "tests/hostile/attack.hpp"
#include "tests/hostile/victim.hpp"

namespace linkspan::test {

/// The results of a period of time.
struct Served {
  struct Path {
    std::uint64_t rounds = 0;  ///< Rounds of a write, a read and a verification of the bytes.
    Duration took{0};
    double rate() const {
      return static_cast<double>(rounds) / std::chrono::duration<double>(took).count();
    }
  };
  std::map<std::string, Path> paths;
  Duration longest{0};  ///< A single call.
  std::string where;    ///< Which.
  std::string wrong;    ///< Bytes, or an error; the first.
};

/// On the honest core.
class HonestPeer {
 public:
  explicit HonestPeer(const Target& target);
  /// Moves bytes for that long, and by all paths at least once; with look-ups or without.
  Served move_for(Duration time, bool look_ups);
  /// Connects a new peer, moves some bytes over both connections and closes it. Returns what went
  /// wrong, or nothing.
  std::string visit(const Target& target);

 private:
  const std::unique_ptr<Child> child_, visitor_;
};

}  // namespace linkspan::test
