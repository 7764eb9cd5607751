// Writes garbage into all memory that a peer shares with the victim, during transfers of both:
// liveness, completion flags, notifications in both directions, regions.
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <random>

#include "tests/hostile/attack.hpp"
#include "tests/hostile/right_peer.hpp"
#include "tests/hostile/victim.hpp"

namespace linkspan::test {
namespace shared_pages {

struct Pages {
  std::uintptr_t begin = 0, end = 0;
};

/// Returns the pages of linkspan that this process may write.
std::vector<Pages> shared_here() {
  std::vector<Pages> found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    Pages pages;
    char rights[5] = {};
    if (line.find("memfd:linkspan-") == std::string::npos ||
        std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %4s", &pages.begin, &pages.end,
                    rights) != 3 ||
        std::string_view(rights) != "rw-s")
      continue;
    found.push_back(pages);
  }
  return found;
}

/// Writes words that look meaningful, and some that do not.
void scribble(const std::vector<Pages>& pages, std::minstd_rand& random) {
  const std::uint64_t likely[] = {0, 1, 2, 7, 64, 4096, ~std::uint64_t{0}, std::uint64_t{1} << 63};
  for (const Pages& each : pages) {
    const std::uint64_t words = (each.end - each.begin) / sizeof(std::uint64_t);
    for (int i = 0; i < 256; ++i) {
      // The first words have most of the meaning.
      const std::uint64_t at = (i % 2 == 0 ? random() % 64 : random()) % words;
      const std::uint64_t value = random() % 2 == 0 ? likely[random() % 8] : random() * random();
      auto* const word = reinterpret_cast<std::uint64_t*>(each.begin) + at;
      std::atomic_ref<std::uint64_t>(*word).store(value, std::memory_order_relaxed);
    }
  }
}

void write_garbage(const Target& target, const std::stop_token& stop,
                   std::atomic<std::uint64_t>& done) {
  std::minstd_rand random(1);
  std::vector<std::unique_ptr<RightPeer>> all;  // an Engine that is confused need not end well
  while (!stop.stop_requested()) {
    all.push_back(std::make_unique<RightPeer>(
        target.unix_address, MemoryOptions{.kind = "host", .bytes = kVictimBytes}));
    RightPeer& attacker = *all.back();
    const RemoteRegion asked = take(attacker.peer.lookup(kExclusiveBait)),
                       mapped = take(attacker.peer.lookup(kBait));
    must(attacker.engine->publish("theirs", attacker.held.region));
    const std::vector<std::byte> note(100);
    for (int round = 0; round < 50 && !stop.stop_requested(); ++round) {
      std::vector<Transfer> under_way;
      for (const RemoteRegion* to : {&asked, &mapped, &asked, &asked}) {
        const Block part = part_of(kVictimBytes, under_way.size(), 4);
        auto next = attacker.peer.write(attacker.held.region, *to, std::span(&part, 1),
                                        {.deadline = 50ms, .notification = note});
        if (next.ok()) under_way.push_back(*next);
        (void)attacker.peer.notify(note);
        scribble(shared_here(), random);
        ++done;
      }
      for (const Transfer& each : under_way) (void)each.wait(20ms);
      if (attacker.peer.state() != PeerState::up) break;
    }
  }
}

const bool kAdded = add_attack({.name = "GarbageInSharedPages",
                                .run = write_garbage,
                                .least = 50,
                                .ending = Attack::Ending::killed});

}  // namespace shared_pages
}  // namespace linkspan::test
