// Tests that an attacked Engine goes on serving others, and keeps nothing of the attack.
//
// There are three processes and a control. The victim and its attacker share one core, so that the
// attacker takes what it can of the victim's time. The honest peer, which moves bytes to and from
// the victim over its Unix socket, its TCP port and the GPUs all the time, has another core. The
// victim must meet these bounds:
// - The honest peer keeps half of the rate that it has while the attacker only uses the same core,
//   on each path, unless other programs have the machine. Rates are printed, and judged only with
//   LINKSPAN_LONG, because other suites run at the same time without it.
// - None of its calls waits longer than 100 ms, plus what a control has waited at the same time: a
//   process on the victim's core that answers a few bytes to one on the honest core. Other programs
//   of the machine delay both.
// - A newcomer connects, moves bytes and closes within five seconds (more where the victim is made
//   slow) plus what the control has waited.
// - The victim uses no more than 64 MiB of memory for them all.
// - Afterwards the victim has the descriptors, threads and mappings of before, and closes in order.
// Each measurement is repeated up to four times: a victim that freezes is slow each time.
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <thread>

#include "tests/hostile/attack.hpp"
#include "tests/hostile/cores.hpp"
#include "tests/hostile/honest.hpp"
#include "tests/hostile/victim.hpp"
#include "tests/support/sanitizers.hpp"
#include "tests/support/take.hpp"

namespace linkspan::test {

void PrintTo(const Attack& attack, std::ostream* out) { *out << attack.name; }

namespace hostile_test {

constexpr Duration kLongestWait = 100ms;
constexpr Duration kAlone = 250ms;
constexpr int kTries = 4;
/// A control that waits longer is on a machine that is too busy to compare rates.
constexpr Duration kQuiet = 25ms;
/// How many threads wake each other in turn for one call; the control's answer is one wake-up.
constexpr int kWakeUps = 8, kVisitsWakeUps = 64;
/// More than everything that is queued for peers and strangers may use.
constexpr std::uint64_t kMaxMemory = std::uint64_t{64} << 20;
#if defined(LINKSPAN_SANITIZER)
constexpr bool kIsSanitized = true;  // which keeps memory that was freed
#else
constexpr bool kIsSanitized = false;
#endif

double ms(Duration time) { return std::chrono::duration<double, std::milli>(time).count(); }

bool is_long() {
  static const bool set = std::getenv("LINKSPAN_LONG") != nullptr;
  return set;
}

/// Returns the time for all attacks together: 10 minutes with LINKSPAN_LONG.
Duration attack_time() {
  if (!is_long()) return 1s;
  return Duration(10min) / static_cast<Duration::rep>(all_attacks().size());
}

constexpr const char* kEcho = "hostile_echo";
void echo_main(Line& line) {
  pin_to(Core::attacked);
  line.serve([](const Json&, const std::vector<base::Fd>&) -> Result<Answer> { return Answer{}; },
             [] { return false; });
}
const bool kEchoRegistered = add_helper(kEcho, echo_main);

/// How long one on the honest core waits for one on the attacked core, at the longest.
class Control {
 public:
  explicit Control(Child& echo)
      : thread_([this, &echo](const std::stop_token& stop) {
          pin_to(Core::honest);
          while (!stop.stop_requested()) {
            const base::Time begin = base::Clock::steady().now();
            if (!echo.line().call({{"do", "echo"}}).ok()) return;
            longest_ = std::max(longest_, base::Clock::steady().now() - begin);
            std::this_thread::sleep_for(2ms);
          }
        }) {}
  Duration end() {
    thread_.request_stop();
    thread_.join();
    return longest_;
  }

 private:
  Duration longest_{0};  // the thread's, until it is joined
  std::jthread thread_;
};

class Hostile : public ::testing::TestWithParam<Attack> {
 protected:
  struct Seen {
    Served served;
    Duration control{0};
    std::string visit;
    Duration visit_took{0};
    std::uint64_t done = 0;
  };

  /// Fixes the number of data connections, because later ones would look like leaks.
  static void SetUpTestSuite() { ::setenv("LINKSPAN_TCP_STREAMS", "1", 1); }
  static void TearDownTestSuite() { ::unsetenv("LINKSPAN_TCP_STREAMS"); }
  void SetUp() override {
    if (GetParam().why_not == nullptr) return;
    if (const std::string why = GetParam().why_not(); !why.empty()) GTEST_SKIP() << why;
  }
  /// Measures for `time`. With `visit_after` it makes look-ups, and a newcomer connects after the
  /// function has returned.
  Seen watch(Duration time, const std::function<void()>& visit_after) {
    const bool whole = visit_after != nullptr;
    Seen seen;
    Control control(*echo_);
    {
      std::jthread visitor;
      if (whole)
        visitor = std::jthread([&] {
          visit_after();
          const base::Time begin = base::Clock::steady().now();
          seen.visit = honest_.visit(victim_.target());
          seen.visit_took = base::Clock::steady().now() - begin;
        });
      seen.served = honest_.move_for(time, whole);
    }
    seen.control = control.end();
    return seen;
  }
  /// Measures while the attacker only uses its core.
  Seen alone() {
    Attacker attacker;
    attacker.burn(GetParam());
    return watch(kAlone, nullptr);
  }
  /// Measures while the attacker attacks.
  Seen attacked() {
    const Attack& attack = GetParam();
    Attacker attacker;
    const bool has_room = attack.lacks == Attack::Lacks::nothing;
    if (!has_room) victim_.lack(attack.lacks);
    attacker.start(attack, victim_.target());
    const bool freezes = attack.ending == Attack::Ending::frozen;
    const auto await_attack = [&] {
      if (!freezes) await(attacker, attack.least);
    };
    if (freezes) {
      await(attacker, attack.least);
      attacker.freeze();
    }
    Seen seen = watch(attack_time(), has_room ? await_attack : std::function<void()>());
    await_attack();
    seen.done = freezes ? attack.least : attacker.done();
    if (attack.is_remote) expect_memory_back();
    if (attack.ending == Attack::Ending::told)
      attacker.stop();
    else
      attacker.kill();
    if (!has_room) victim_.lack(Attack::Lacks::nothing);
    return seen;
  }
  void expect_memory_back() { EXPECT_EQ(victim_.invalidate(), "") << "which was the attacker's"; }
  static std::string slower(const Served& served, const Served& than) {
    std::string which;
    for (const auto& [path, before] : than.paths) {
      const double now = served.paths.at(path).rate();
      std::printf("%s: %.0f rounds a second, %.0f beside a busy core\n", path.c_str(), now,
                  before.rate());
      if (is_long() && now < before.rate() / 2)
        which += path + " has lost more than half of its rate; ";
    }
    return which;
  }
  /// Measures once. Returns an empty text if the victim met all bounds.
  std::string measure() {
    const Seen before = alone();
    const std::uint64_t had = victim_.most_memory();
    const Seen seen = attacked();
    // A local peer may have memory until its process has ended.
    if (!GetParam().is_remote) expect_memory_back();
    const std::uint64_t most = victim_.most_memory();
    std::printf(
        "attacked %lu times; waited %.1f ms at most, in %s; a visit %.1f ms; the control %.1f ms\n",
        seen.done, ms(seen.served.longest), seen.served.where.c_str(), ms(seen.visit_took),
        ms(seen.control));
    std::string wrong = before.served.wrong + seen.served.wrong;
    if (!seen.visit.empty()) wrong += "a newcomer: " + seen.visit + "; ";
    if (seen.visit_took > GetParam().visit + kVisitsWakeUps * seen.control)
      wrong += "a visit took " + std::to_string(ms(seen.visit_took)) + " ms; ";
    if (seen.served.longest > kLongestWait + kWakeUps * seen.control)
      wrong +=
          "a " + seen.served.where + " took " + std::to_string(ms(seen.served.longest)) + " ms; ";
    if (!kIsSanitized && most > had + kMaxMemory)
      wrong += "it took " + std::to_string(most - had) + " bytes of memory; ";
    // Other programs of the machine take from one measurement what they leave to the other.
    if (std::max(before.control, seen.control) < kQuiet &&
        !slower(seen.served, before.served).empty())
      wrong += slower(seen.served, alone().served);
    return wrong;
  }
  static void await(Attacker& attacker, std::uint64_t least) {
    const auto limit = base::Deadline::after(base::Clock::steady(), 20s);
    std::uint64_t done = 0;
    while ((done = attacker.done()) < least && !limit.passed()) std::this_thread::yield();
    EXPECT_GE(done, least) << "this is no attack";
  }

  const std::unique_ptr<Child> echo_ = take(Child::spawn(kEcho));
  Victim victim_{GetParam().environment};
  HonestPeer honest_{victim_.target()};
};

TEST_P(Hostile, KeepsServingOthers) {
  EXPECT_EQ(honest_.move_for(Duration::zero(), true).wrong, "");
  EXPECT_EQ(honest_.visit(victim_.target()), "");
  Usage before = victim_.usage(300ms, {});
  before.fds += GetParam().kept_fds;
  std::string wrong = "not measured";
  for (int i = 0; i < kTries && !wrong.empty(); ++i) wrong = measure();
  EXPECT_EQ(wrong, "");

  const Usage after = victim_.usage(15s, before);
  EXPECT_EQ(after.above(before), 0u)
      << "before: " << before.to_string() << "\nafter:  " << after.to_string() << '\n'
      << victim_.dump();
  EXPECT_EQ(honest_.visit(victim_.target()), "");
  EXPECT_EQ(victim_.close(), "");
}

INSTANTIATE_TEST_SUITE_P(All, Hostile, ::testing::ValuesIn(all_attacks()),
                         [](const auto& attack) { return attack.param.name; });

}  // namespace hostile_test
}  // namespace linkspan::test
