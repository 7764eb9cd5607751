// Has the victim copy from a peer whose memory never answers a page fault.
#include "tests/hostile/attack.hpp"
#include "tests/hostile/right_peer.hpp"
#include "tests/hostile/victim.hpp"
#include "tests/support/silent_pages.hpp"

namespace linkspan::test {
namespace silent_memory {

std::string why_not() {
  return SilentPages(kVictimBytes).fall_silent() ? ""
                                                 : "needs root, to handle faults of system calls";
}

void never_answer(const Target& target, const std::stop_token& stop,
                  std::atomic<std::uint64_t>& done) {
  static SilentPages silent(kVictimBytes);  // outlives the Engine, which is not closed
  silent.fall_silent();
  static RightPeer attacker(target.unix_address);
  const Region region = take(attacker.engine->register_memory(silent.at(), kVictimBytes));
  const RemoteRegion remote = take(attacker.peer.lookup(kExclusiveBait));
  for (std::uint64_t i = 0; !stop.stop_requested(); ++i) {
    const Block part = part_of(kVictimBytes, i % 64, 64);
    auto next = attacker.peer.write(region, remote, std::span(&part, 1), {.deadline = 100ms});
    if (!next.ok()) continue;
    (void)next->wait(10ms);
    ++done;
  }
}

const bool kAdded = add_attack({.name = "MemoryThatDoesNotAnswer",
                                .run = never_answer,
                                .least = 20,
                                .ending = Attack::Ending::killed,
                                .why_not = why_not});

}  // namespace silent_memory
}  // namespace linkspan::test
