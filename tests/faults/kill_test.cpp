// Tests peers that are killed at random moments, many at once, and return: the surviving Engine
// ends every transfer within a second, serves the others undisturbed, and keeps nothing of the
// dead. LINKSPAN_KILL_ROUNDS is the number of kills, LINKSPAN_FAULTS_SEED repeats a run, and
// LINKSPAN_FAULTS_OUT names the file for the rows of the evidence.
#include <poll.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <map>

#include "copy/staging.hpp"
#include "tests/faults/killer.hpp"
#include "tests/faults/lane.hpp"
#include "tests/faults/usage.hpp"
#include "tests/support/held_stream.hpp"
#include "tests/support/sanitizer_order.hpp"

namespace linkspan::test {
namespace kill_test {

constexpr std::uint64_t kBar = 200;    // kills that one run on a machine with GPUs is to survive
constexpr std::uint64_t kMany = 1000;  // and all routes together
constexpr std::uint64_t kLanes = 8;
constexpr Duration kToEnd = 1s, kToLive = 60ms;
// A stream that the test holds before a transfer follows it may meet a closing
// (cuda/deferred_destroyer.hpp), and then all wait for it.
constexpr Duration kToStand = kToLive + 150ms;

std::uint64_t number(const char* variable, std::uint64_t otherwise) {
  const char* set = std::getenv(variable);
  return set == nullptr ? otherwise : std::strtoull(set, nullptr, 10);
}

/// Large where it is run for long, and then by many.
struct Scale {
  // Sanitizers (cmake/tests.cmake) take their time.
  std::uint64_t kills = number("LINKSPAN_KILL_ROUNDS", std::getenv("LINKSPAN_TEST_LARGE") ? 24 : 8);
  // More would measure the kernel, which takes the GPUs from dead processes one by one.
  std::uint64_t seats = 8;
  std::uint64_t lane_bytes = kills < 100 ? 64u << 10 : 1u << 20;
  std::uint64_t seed = number("LINKSPAN_FAULTS_SEED", std::random_device()());
};

/// Chunks, what a pool has, and what only a bounce reaches.
constexpr std::array kMade = {kMadeKinds[0], kMadeKinds[1], kMadeKinds[2]};

/// Returns all kinds, or those that LINKSPAN_FAULTS_KINDS names.
std::vector<Kind> kinds() {
  const char* named = std::getenv("LINKSPAN_FAULTS_KINDS");
  std::vector<Kind> found;
  for (const Kind& kind : kKinds)
    if (kinds_here({kind}).ok()) found.push_back(kind);
  if (kinds_here({kMadeKinds[0]}).ok()) found.insert(found.end(), kMade.begin(), kMade.end());
  if (named != nullptr)
    std::erase_if(found, [text = std::string(named)](const Kind& kind) {
      return text.find(kind.name) == std::string::npos;
    });
  return found;
}

base::Time now() { return base::Clock::steady().now(); }

/// Sums of all seats.
struct Tally {
  std::atomic<std::uint64_t> kills{0}, undisturbed_errors{0};
  std::atomic<std::uint64_t> lost{0}, late{0};  // memories with wrong bytes
  /// The driver took the GPU from all processes that use it, not from the killed one alone:
  /// CUDA_ERROR_CONTAINED (226; docs/faults.md). The rest of this run says nothing about linkspan.
  std::atomic<bool> contained{false};
  std::atomic<Duration::rep> slowest{0};

  void disturbed(const std::string& error) {
    ++undisturbed_errors;
    if (error.find("(226)") != std::string::npos) contained = true;
  }
  void ended(Duration after_the_kill) {
    Duration::rep seen = slowest;
    while (seen < after_the_kill.count() &&
           !slowest.compare_exchange_weak(seen, after_the_kill.count())) {
    }
  }
};

/// Starts a victim, has it killed, and starts the next. Has what remains here of such a pair. A
/// thread of its own drives each seat.
class Seat {
 public:
  Seat(Engine& engine, Killer& killer, Tally& tally, const Scale& scale, std::uint64_t index)
      : engine_(engine),
        killer_(killer),
        tally_(tally),
        lane_bytes_(scale.lane_bytes),
        name_("target " + std::to_string(index) + " "),
        random_(scale.seed + index) {
    for (std::uint64_t i = 0; i < kLanes; ++i)
      lanes_.emplace_back(
          Held::make(engine, {.kind = kinds_[i % kinds_.size()].name, .bytes = lane_bytes_}),
          lane_bytes_);
    for (const Kind& kind : kinds_) {
      Held target = Held::make(engine, {.kind = kind.name, .bytes = 2 * lane_bytes_});
      target.fill(kUntouched);
      must(engine.publish(name_ + kind.name, target.region));
      targets_.push_back(std::move(target));
    }
    if (index % 4 != 0 || !need_gpus(1).ok()) return;
    stream_ = std::make_unique<HeldStream>();
    for (std::size_t i = 0; i < held(); ++i) lanes_[i].follow(stream_->order());
  }

  void kill_one() {
    FarEngine victim;
    Strike strike;
    const base::Time begin = now();
    const bool early = to_meet_ != Duration::zero() && random_() % 4 == 0;  // while they meet
    if (early) strike_within(to_meet_, victim, strike);
    const Status met = meet(victim);
    if (!early) to_meet_ = now() - begin;
    EXPECT_TRUE(met.ok() || (strike.came() && says_dead(met))) << met.to_string();
    if (!early) strike_within(kToLive, victim, strike);
    if (stream_) stream_->hold(kToStand);
    while (met.ok() && !strike.came()) {
      for (Lane& lane : lanes_) {
        const Status status = lane.pump(random_);
        if (!status.ok() && !strike.came()) disturbed(status.to_string());
      }
    }
    pollfd end{.fd = victim.process().pidfd(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&end, 1, 10000), 1) << "the victim does not end";
    is_dead(strike, met.ok());
    victim.process().kill();
    if (const std::uint64_t kills = ++tally_.kills; kills % 20 == 0) {
      std::printf("%zu kills\n", std::size_t{kills});
      std::fflush(stdout);
    }
  }

  /// Lets one victim live, and verifies every byte of it.
  void spare_one() {
    FarEngine victim;
    must(meet(victim));
    for (int i = 0; i < 10; ++i)
      for (Lane& lane : lanes_) must(lane.pump(random_));
    const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
    for (Lane& lane : lanes_) {
      EXPECT_EQ(lane.settle(limit), "");
      EXPECT_EQ(lane.poll(), "");
    }
    EXPECT_EQ(victim.rest(), "");
    order_accesses(engine_);
    for (std::size_t i = 0; i < kinds_.size(); ++i) {
      const Expected came{0, kSource, 0, lane_bytes_};
      EXPECT_EQ(targets_[i].difference(kUntouched, {came}), "") << "into " << kinds_[i].name;
      targets_[i].fill(kUntouched);
      victim.fill(into(kinds_[i]), kUntouched);
    }
    aim();
    std::map<std::string, std::vector<Expected>> there;
    for (std::size_t i = 0; i < kLanes; ++i)
      EXPECT_EQ(lanes_[i].last_round(random_, there[far_[i].name]), "");
    for (const Kind& kind : kinds_)
      EXPECT_EQ(victim.difference(into(kind), kUntouched, there[kind.name]), "") << kind.name;
    forget();
  }

  /// Drops all objects of a victim.
  void forget() {
    peer_ = old_ = {};
    remotes_.clear();
    must_be_refused_ = {};
  }
  std::uint64_t broken() const {
    std::uint64_t all = 0;
    for (const Lane& lane : lanes_) all += lane.broken();
    return all;
  }

 private:
  static constexpr std::uint64_t kUntouched = 1, kSource = 2;
  static std::string from(const Kind& kind) { return std::string("from ") + kind.name; }
  static std::string into(const Kind& kind) { return std::string("into ") + kind.name; }
  static std::string sink(const Kind& kind) { return std::string("sink ") + kind.name; }
  /// Returns the number of lanes, from the first on, that run after a user's stream, which is
  /// blocked at the kill.
  std::size_t held() const { return stream_ != nullptr ? 2 : 0; }
  const Kind& any_kind() { return kinds_[random_() % kinds_.size()]; }

  /// Returns true for the errors of a call whose peer dies meanwhile, before it listens, or while
  /// its key is opened.
  static bool says_dead(const Status& status) {
    return status.code() == Code::disconnected || status.code() == Code::unreachable ||
           status.code() == Code::corrupt;
  }
  void disturbed(const std::string& what) {
    tally_.disturbed(what);
    ADD_FAILURE() << "while all its peers live: " << what;
  }
  void strike_within(Duration time, FarEngine& victim, Strike& strike) {
    const auto in =
        static_cast<Duration::rep>(random_() % static_cast<std::uint64_t>(time.count()));
    killer_.kill(victim.process().pid(), now() + Duration(in), strike);
  }

  /// Registers and looks up the regions of both, and starts traffic from both sides. Returns the
  /// error of a step.
  Status meet(FarEngine& victim) try {
    const std::uint64_t bytes = kLanes * lane_bytes_;
    for (const Kind& kind : kinds_) {
      victim.add(from(kind), {.kind = kind.name, .bytes = bytes});
      victim.add(into(kind), {.kind = kind.name, .bytes = bytes});
      victim.add(sink(kind), {.kind = kind.name, .bytes = lane_bytes_});
      victim.fill(from(kind), kSource);
    }
    // A change since the last victim was gone came late.
    for (Held& target : targets_) {
      const std::string wrong = target.difference(kUntouched);
      EXPECT_EQ(wrong, "") << "a late byte";
      if (!wrong.empty()) ++tally_.late;
    }
    auto met = engine_.connect(victim.address(), kToEnd);
    if (!met.ok()) return met.status();
    peer_ = *met;
    refuses_the_old();
    for (const Kind& kind : kinds_) {
      for (const std::string& name : {from(kind), into(kind)}) {
        auto remote = peer_.lookup(name);
        if (!remote.ok()) return remote.status();
        remotes_[name] = *remote;
      }
    }
    aim();
    victim.accept();
    for (const Kind& kind : kinds_) {
      const std::string target = name_ + kind.name;
      victim.churn(Op::write, from(any_kind()), target, {0, 0, lane_bytes_});
      victim.churn(Op::read, sink(kind), target, {0, lane_bytes_, lane_bytes_});
    }
    return {};
  } catch (const std::exception& error) {  // of the calls to a victim that is dead by now
    return {Code::disconnected, Scope::peer, error.what()};
  }

  void aim() {
    far_.clear();
    for (std::uint64_t i = 0; i < kLanes; ++i) {
      const Op op = random_() % 2 == 0 ? Op::write : Op::read;
      far_.push_back(any_kind());
      const std::string name = op == Op::write ? into(far_[i]) : from(far_[i]);
      lanes_[i].aim(op, peer_, remotes_.at(name), i * lane_bytes_, kSource);
    }
  }

  /// Checks that a region of the last victim is not one of this one's.
  void refuses_the_old() {
    if (!must_be_refused_.valid()) return;
    const Block one{0, 0, 1};
    const auto code = [&](const Peer& peer) {
      return finished(peer.write(lanes_[0].region(), must_be_refused_, std::span(&one, 1))).code();
    };
    EXPECT_EQ(code(peer_), Code::invalid_argument);
    EXPECT_EQ(code(old_), Code::disconnected);
    must_be_refused_ = {};
  }

  void is_dead(const Strike& strike, bool had_traffic) {
    const auto limit = base::Deadline::after(base::Clock::steady(), strike.at() + kToEnd - now());
    for (std::size_t i = held(); i < kLanes; ++i) EXPECT_EQ(lanes_[i].settle(limit), "");
    if (had_traffic) tally_.ended(now() - strike.at());
    if (stream_) stream_->go_on();
    const auto moved = base::Deadline::after(base::Clock::steady(), kToEnd);
    for (std::size_t i = 0; i < held(); ++i)
      EXPECT_EQ(lanes_[i].settle(moved), "") << "behind a stream";
    while (peer_.state() != PeerState::gone && !limit.passed()) engine_.progress();
    EXPECT_EQ(peer_.state(), PeerState::gone) << "a second after the kill";
    for (Lane& lane : lanes_) {
      const std::string wrong = lane.poll();
      EXPECT_EQ(wrong, "");
      if (!wrong.empty()) ++tally_.lost;
    }
    for (Held& target : targets_) target.fill(kUntouched);
    if (!remotes_.empty()) {
      must_be_refused_ = remotes_.begin()->second;
      old_ = peer_;
    }
    peer_ = {};
    remotes_.clear();
  }

  Engine& engine_;
  Killer& killer_;
  Tally& tally_;
  const std::uint64_t lane_bytes_;
  const std::string name_;
  Random random_;
  const std::vector<Kind> kinds_ = kinds();
  std::vector<Lane> lanes_;
  std::unique_ptr<HeldStream> stream_;  // null: nothing here runs after one
  std::vector<Held> targets_;
  std::vector<Kind> far_;  // of each lane now
  Peer peer_, old_;
  std::map<std::string, RemoteRegion> remotes_;
  RemoteRegion must_be_refused_;
  Duration to_meet_{0};
};

/// A pair that is not killed: its transfers notice nothing of what happens to the others.
class Witness {
 public:
  Witness(Engine& engine, Tally& tally, const Scale& scale)
      : tally_(tally), bytes_(scale.lane_bytes), random_(scale.seed) {
    for (const Kind& kind : kinds()) {
      far_.add(kind.name, {.kind = kind.name, .bytes = bytes_});
      far_.fill(kind.name, 1);
      lanes_.emplace_back(Held::make(engine, {.kind = kind.name, .bytes = bytes_}), bytes_);
    }
    peer_ = take(engine.connect(far_.address()));
  }
  void watch(const std::stop_token& stop) try {
    const std::vector<Kind> known = kinds();
    for (std::size_t i = 0; i < known.size(); ++i)
      lanes_[i].aim(Op::read, peer_, take(peer_.lookup(known[known.size() - 1 - i].name)), 0, 1);
    while (!stop.stop_requested()) {
      for (Lane& lane : lanes_)
        if (const Status status = lane.pump(random_); !status.ok()) check(status.to_string());
    }
    for (Lane& lane : lanes_) {
      const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
      check(lane.settle(limit));
      check(lane.poll());
    }
  } catch (const std::exception& error) {  // of the test's own calls to a driver that has failed
    check(error.what());
  }

 private:
  void check(const std::string& wrong) {
    if (wrong.empty()) return;
    tally_.disturbed(wrong);
    ADD_FAILURE() << "between two that nobody killed: " << wrong;
  }

  Tally& tally_;
  const std::uint64_t bytes_;
  Random random_;
  FarEngine far_;
  std::vector<Lane> lanes_;
  Peer peer_;
};

double to_ms(Duration::rep nanoseconds) { return static_cast<double>(nanoseconds) / 1e6; }

void write_rows(const Tally& tally, std::uint64_t leaks) {
  const char* file = std::getenv("LINKSPAN_FAULTS_OUT");
  if (file == nullptr) return;
  const std::uint64_t kills = tally.kills, errors = tally.undisturbed_errors;
  const auto count = [](const char* id, std::uint64_t value, std::uint64_t bar, bool pass) {
    return Json{{"id", id}, {"value", value}, {"unit", "count"}, {"bar", bar}, {"pass", pass}};
  };
  const bool good = !::testing::Test::HasFailure();
  Json rows{{{"id", "contained_runs"}, {"value", tally.contained ? 1 : 0}, {"unit", "count"}}};
  if (!tally.contained)
    rows.insert(rows.end(), {count("kill_rounds", kills, kBar, good && kills >= kBar),
                             {{"id", "kill_to_quiet.max"},
                              {"value", to_ms(tally.slowest)},
                              {"unit", "ms"},
                              {"bar", to_ms(kToEnd.count())},
                              {"pass", tally.slowest <= kToEnd.count()}},
                             count("kills", kills, kMany, good && kills >= kMany),
                             count("leaks", leaks, 0, leaks == 0),
                             count("undisturbed_peer_errors", errors, 0, errors == 0)});
  if (!tally.contained || tally.lost + tally.late != 0)  // before it, too
    rows.insert(rows.end(), {count("lost_bytes", tally.lost, 0, tally.lost == 0),
                             count("late_bytes", tally.late, 0, tally.late == 0)});
  const Json out{{"what", "an Engine that stays while its peers are killed at random moments"},
                 {"command", "LINKSPAN_KILL_ROUNDS=" + std::to_string(kills) + " linkspan_faults"},
                 {"rows", std::move(rows)}};
  std::ofstream(file) << out.dump(2) << '\n';
}

/// Executors pin slots, and make their streams, when they first need one more (copy/staging.hpp).
constexpr unsigned kExecutors = 2, kGpus = 2;
void allow_for_staging(Usage& usage) {
  if (usage.balance.empty()) return;
  constexpr unsigned kSlots = kExecutors * copy::Staging::kBuffers;
  usage.balance["host allocations"] += kSlots;
  usage.mappings += kSlots;
  for (const char* each : {"streams", "device allocations"})
    usage.balance[each] += kExecutors * kGpus;
}

TEST(Kills, TheEngineThatStaysEndsAllHoldsNothingAndServesTheOthers) {
  const Scale scale;
  SCOPED_TRACE("LINKSPAN_FAULTS_SEED=" + std::to_string(scale.seed));
  std::printf("%zu kills, %zu at once, LINKSPAN_FAULTS_SEED=%zu\n", std::size_t{scale.kills},
              std::size_t{scale.seats}, std::size_t{scale.seed});
  Tally tally;
  std::vector<std::unique_ptr<Seat>> seats;  // their memory outlives the Engine
  std::unique_ptr<Witness> witness;
  Killer killer;
  EngineOptions options = engine_options("survivor");
  options.cpu_threads = kExecutors;
  options.log = [](LogLevel, std::string_view line) {  // says which path a lost context was lost on
    if (line.find("CUDA_ERROR") != std::string_view::npos)
      std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
  };
  Engine engine = take(Engine::open(options));
  witness = std::make_unique<Witness>(engine, tally, scale);
  for (std::uint64_t i = 0; i < scale.seats; ++i)
    seats.push_back(std::make_unique<Seat>(engine, killer, tally, scale, i));

  const auto phase = [&](std::uint64_t kills) {
    std::jthread watching([&](const std::stop_token& stop) { witness->watch(stop); });
    std::vector<std::jthread> threads;
    for (std::uint64_t i = 0; i < scale.seats; ++i)
      threads.emplace_back([&, i, mine = (kills + i) / scale.seats] {
        try {
          for (std::uint64_t kill = 0; kill < mine && !::testing::Test::HasFailure(); ++kill)
            seats[i]->kill_one();
          seats[i]->spare_one();
        } catch (const std::exception& error) {
          ADD_FAILURE() << "with seat " << i << ": " << error.what();
        }
      });
  };
  phase(3 * scale.seats);  // what is made once is made now, by the driver too
  if (tally.contained) return write_rows(tally, 0);  // nothing here has a context any more
  Usage before = Usage::lowest(1s, {});
  allow_for_staging(before);
  tally.kills = 0;
  phase(scale.kills);
  const Usage after =
      Usage::lowest(10s, before);  // closings take turns (cuda/deferred_destroyer.hpp)
  const std::uint64_t leaks = after.above(before);
  EXPECT_EQ(leaks, 0u) << "before: " << before.to_string() << "; after: " << after.to_string();
  EXPECT_EQ(tally.undisturbed_errors, 0u);
  EXPECT_EQ(tally.kills, scale.kills);
  std::uint64_t broken = 0;
  for (const auto& seat : seats) broken += seat->broken();
  EXPECT_GT(broken, 0u) << "no kill hit a transfer: this test shows nothing";
  std::printf("%zu transfers were broken by them; the last was quiet %.1f ms after its kill; %s\n",
              std::size_t{broken}, to_ms(tally.slowest), after.to_string().c_str());
  write_rows(tally, leaks);
  EXPECT_EQ(engine.close(5s).to_string(), "ok");
}

}  // namespace kill_test
}  // namespace linkspan::test
