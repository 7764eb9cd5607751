// Attacks a victim without room for descriptors, for memory, or for its lines on stderr, and one
// whose threads lose their core at random. Strangers and peers connect meanwhile.
#include <deque>
#include <filesystem>

#include "tests/hostile/attack.hpp"
#include "tests/hostile/raw_attacker.hpp"
#include "tests/hostile/victim.hpp"
#include "tests/support/sanitizers.hpp"

namespace linkspan::test {
namespace little_room {

/// Peers and strangers of all kinds, which stay for a while.
void crowd(const Target& target, const std::stop_token& stop, std::atomic<std::uint64_t>& done) {
  std::deque<RawAttacker> all;
  for (std::size_t i = 0; !stop.stop_requested(); ++i) {
    RawAttacker& next =
        all.emplace_back(i % 2 == 0 ? target.unix_address : target.tcp_address, stop);
    if (i % 3 == 0) (void)next.say(control::FrameOp::notify, std::vector<std::byte>(4096));
    if (i % 3 == 1) (void)next.greet();
    if (next.connected()) ++done;
    if (all.size() > 100) all.pop_front();
  }
}

std::string no_sanitizer() {
#if defined(LINKSPAN_SANITIZER)
  return "needs a build without sanitizers, which need room themselves";
#else
  return {};
#endif
}

std::string unlucky_library() { return file_beside_this_program("libunlucky_threads.so"); }
std::string needs_library() {
  if (const std::string why = no_sanitizer(); !why.empty()) return why;
  return std::filesystem::exists(unlucky_library()) ? "" : "needs libunlucky_threads.so";
}

const bool kAdded[] = {
    add_attack({.name = "NoDescriptors",
                .run = crowd,
                .least = 100,
                .lacks = Attack::Lacks::descriptors,
                .why_not = no_sanitizer}),
    add_attack({.name = "NoAddressSpace",
                .run = crowd,
                .least = 100,
                .lacks = Attack::Lacks::address_space,
                .why_not = no_sanitizer}),
    add_attack({.name = "ThreadsThatLoseTheirCore",
                .run = crowd,
                .least = 100,
                .environment = {"LD_PRELOAD=" + unlucky_library()},
                .visit = 20s,  // it takes ten times as long for each stranger, one after another
                .why_not = needs_library}),
    add_attack({.name = "StderrThatNobodyReads",
                .run = crowd,
                .least = 100,
                .environment = {kUnreadStderr},
                .kept_fds = 1}),
};

}  // namespace little_room
}  // namespace linkspan::test
