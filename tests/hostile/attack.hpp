// tests/hostile/attack.hpp - one attack on an Engine, by a process that does nothing else.
//
// Each attack is a function in a file of its kind, which adds it by name; the attacker's process
// runs it on as many threads as it says until the test ends it. It counts what it has done, so that
// an attack that does nothing shows.
// Threads: an attack's function is run by several threads at once where it asks for that.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "tests/support/process.hpp"

namespace linkspan::test {

/// Addresses at which the victim is reached.
struct Target {
  std::string unix_address, tcp_address, socket_folder;
};

struct Attack {
  using Run = void (*)(const Target& target, const std::stop_token& stop,
                       std::atomic<std::uint64_t>& done);

  std::string name;  ///< Used in a test's name: letters and digits.
  Run run = nullptr;
  /// Minimum of `done` in the time that a test gives the attack.
  std::uint64_t least = 1;
  unsigned threads = 1;
  /// How the attack ends: by the test's request, by a kill, or by SIGSTOP during its work and a
  /// kill afterwards.
  enum class Ending : std::uint8_t { told, killed, frozen } ending = Ending::told;
  /// The victim has its memory back before the attacker is killed; else afterwards.
  bool is_remote = false;
  /// The victim's variables: NAME=VALUE.
  std::vector<std::string> environment{};
  /// Descriptors that the victim makes for that once, and keeps.
  std::uint64_t kept_fds = 0;
  /// The resource that the victim lacks meanwhile. There are no look-ups then, and no newcomers.
  enum class Lacks : std::uint8_t { nothing, descriptors, address_space } lacks = Lacks::nothing;
  /// How long a newcomer may take.
  Duration visit = std::chrono::seconds(5);
  /// Returns the reason why it cannot run here; empty if it can.
  std::string (*why_not)() = nullptr;
};
/// Adds an attack, at namespace scope: `const bool kAdded = add_attack({.name = "Floods", .run =
/// flood});`
bool add_attack(Attack attack);
/// Returns all attacks, ordered by name.
std::vector<Attack> all_attacks();

/// The process that attacks, on the victim's core.
class Attacker {
 public:
  Attacker();

  /// Uses the core only, with as many threads, for comparison with the attack.
  void burn(const Attack& attack);
  void start(const Attack& attack, const Target& target);
  /// Returns what it has done so far.
  std::uint64_t done();
  /// Returns when it has ended; what it had opened is closed.
  void stop();
  void freeze();
  void kill();

 private:
  const std::unique_ptr<Child> child_;
};

}  // namespace linkspan::test
