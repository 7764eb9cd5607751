// Tests transfers of several pairs of regions, submitted or prepared, that are canceled, pass their
// deadline, lose their peer or one of their regions in their midst, inside a host and by TCP: each
// becomes quiet with a true status, no byte comes late, and the Engine serves the next transfer and
// the next peer.
#include <signal.h>

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "tests/conformance/wire_pair.hpp"

namespace linkspan::test {
namespace region_pairs_test {

constexpr std::size_t kPairs = 6;
constexpr std::uint64_t kBytes = (1u << 20) + 77;

/// The kind of memory on both sides, and how the peer is met: in this host, or by TCP.
struct MeetingCase {
  const char* name;
  const char* kind;
  bool tcp = false, prepared = false;
};
constexpr MeetingCase kCases[] = {
    {"local_host", "host"},         {"local_shared", "shared"},
    {"local_device", "device0"},    {"local_shared_prepared", "shared", false, true},
    {"tcp_host", "host", true},     {"tcp_host_prepared", "host", true, true},
    {"tcp_device", "device0", true}};
void PrintTo(const MeetingCase& each, std::ostream* out) { *out << each.name; }

/// Pairs of regions, and odd blocks of each that one transfer copies. `memory` outlives the Engine.
class Pairs {
 public:
  Pairs(std::deque<Held>& memory, Engine& engine, FarEngine& far, const Peer& peer,
        const MeetingCase& by)
      : far_(far), peer_(peer), options_(by.tcp ? by_wire(kTcp) : TransferOptions()) {
    static int made = 0;
    prefix_ = "set " + std::to_string(++made) + " region ";
    for (std::uint64_t i = 0; i < kPairs; ++i) {
      here_.push_back(
          &memory.emplace_back(Held::make(engine, {.kind = by.kind, .bytes = kBytes + i})));
      far.add(name(i), {.kind = by.kind, .bytes = kBytes + 2 * i});
      there_.push_back(take(peer.lookup(name(i))));
      blocks_.push_back({{1 + i, 2 + i, kBytes / 2},
                         {kBytes / 2 + 9, kBytes / 2 + 7, kBytes / 4},
                         {kBytes - 3, kBytes - 2, 1}});
    }
    if (!by.prepared) return;
    write_ = take(peer.prepare(Op::write, parts()));
    read_ = take(peer.prepare(Op::read, parts()));
  }
  const Region& here(std::size_t pair) const { return here_[pair]->region; }

  Result<Transfer> start(Op op, Duration deadline = {}) const {
    TransferOptions options = options_;
    options.deadline = deadline;
    if (write_.valid()) return (op == Op::write ? write_ : read_).post(options);
    return op == Op::write ? peer_.write(parts(), options) : peer_.read(parts(), options);
  }
  /// Starts a copy between one pair.
  Result<Transfer> start_one(Op op, std::size_t pair) const {
    return move(peer_, op, here(pair), there_[pair], blocks_[pair][0], options_);
  }
  /// Fills each region on both sides with bytes of its own.
  void fill(std::uint64_t seed) {
    seed_ = seed;
    fill_here();
    for (std::size_t i = 0; i < kPairs; ++i) far_.fill(name(i), theirs(i));
  }
  /// Does so on this side only.
  void fill_here(std::uint64_t seed) {
    seed_ = seed;
    fill_here();
  }
  void expect_untouched() const {
    expect_untouched_here();
    for (std::size_t i = 0; i < kPairs; ++i) EXPECT_EQ(far_.difference(name(i), theirs(i)), "");
  }
  void expect_untouched_here() const {
    for (std::size_t i = 0; i < kPairs; ++i) EXPECT_EQ(here_[i]->difference(ours(i)), "") << i;
  }
  /// Expects that a transfer has moved all, and nothing else.
  void expect_moved(Op op) const {
    for (std::size_t i = 0; i < kPairs; ++i) {
      std::vector<Expected> here_due, there_due;
      for (const Block& b : blocks_[i]) {
        if (op == Op::write)
          there_due.push_back({b.remote_offset, ours(i), b.local_offset, b.bytes});
        else
          here_due.push_back({b.local_offset, theirs(i), b.remote_offset, b.bytes});
      }
      EXPECT_EQ(here_[i]->difference(ours(i), here_due), "") << i;
      EXPECT_EQ(far_.difference(name(i), theirs(i), there_due), "") << i;
    }
  }
  /// Moves everything both ways, with fresh data.
  void serve() {
    static std::uint64_t served = 1000;
    for (const Op op : {Op::write, Op::read}) {
      fill(served += 100);
      EXPECT_EQ(finished(start(op)).to_string(), "ok");
      expect_moved(op);
    }
  }
  void deregister(Engine& engine) const {
    for (std::size_t i = 0; i < kPairs; ++i)
      EXPECT_EQ(engine.deregister(here(i), 5s).to_string(), "ok") << i;
  }

 private:
  std::vector<TransferPart> parts() const {
    std::vector<TransferPart> all;
    for (std::size_t i = 0; i < kPairs; ++i) all.push_back({here(i), there_[i], blocks_[i]});
    return all;
  }
  std::string name(std::size_t pair) const { return prefix_ + std::to_string(pair); }
  std::uint64_t ours(std::size_t pair) const { return seed_ + 2 * pair; }
  std::uint64_t theirs(std::size_t pair) const { return seed_ + 2 * pair + 1; }
  void fill_here() {
    for (std::size_t i = 0; i < kPairs; ++i) here_[i]->fill(ours(i));
  }

  FarEngine& far_;
  const Peer peer_;
  const TransferOptions options_;
  std::string prefix_;
  std::vector<Held*> here_;
  std::vector<RemoteRegion> there_;
  std::vector<std::vector<Block>> blocks_;
  Prepared write_, read_;  // valid if the case posts these
  std::uint64_t seed_ = 0;
};

class RegionPairs : public ::testing::TestWithParam<MeetingCase> {
 protected:
  void SetUp() override {
    if (Status status = kinds_here({kind_of(GetParam().kind)}); !status.ok())
      GTEST_SKIP() << status.to_string();
  }
  static bool by_tcp() { return GetParam().tcp; }
  static std::vector<std::string> environment() {
    return by_tcp() ? with_wire(kTcp) : std::vector<std::string>();
  }
  Pairs make(Pair& pair) { return {memory_, pair.engine, pair.far, pair.peer, GetParam()}; }

  /// Starts a write and a read in each round and ends them early, until one was ended in its midst.
  void leaves_nothing_late(Code ends_as) {
    Pair pair(environment());
    Pairs out = make(pair), in = make(pair), later = make(pair);
    std::size_t ended = 0;
    // Copies that are in a GPU's stream run to their end.
    const bool shows = by_tcp() || kind_of(GetParam().kind).kind != MemoryKind::device;
    for (int round = 0; round < 3 || (shows && ended == 0 && round < 50); ++round) {
      const bool cancels = ends_as == Code::canceled;
      const Duration deadline = cancels ? Duration(30s) : 1us * (1u << round % 10);
      const Transfer moved[] = {take(out.start(Op::write, deadline)),
                                take(in.start(Op::read, deadline))};
      if (cancels && round % 3 != 0) (void)moved[1].wait(100us * (round % 3));
      for (const Transfer& each : moved) {
        const Status asked = cancels ? each.cancel() : Status();
        EXPECT_TRUE(asked.ok() || asked.code() == Code::pending) << asked.to_string();
      }
      for (const Transfer& each : moved) {
        const Status end = each.wait(10s);
        ASSERT_TRUE(each.done()) << pair.engine.dump();
        EXPECT_TRUE(end.ok() || end.code() == ends_as) << end.to_string();
        ended += end.ok() ? 0 : 1;
      }
      out.fill(100);  // the user has all memories back
      in.fill(200);
      later.serve();  // after them, by the same connections
      out.expect_untouched();
      in.expect_untouched();
    }
    EXPECT_TRUE(ended > 0 || !shows) << "each was faster than its end: this test shows nothing";
    out.deregister(pair.engine);
    in.deregister(pair.engine);
  }

  std::deque<Held> memory_;  // outlives the Engines
};

TEST_P(RegionPairs, LeaveNothingLate_WhenCanceled) { leaves_nothing_late(Code::canceled); }

TEST_P(RegionPairs, LeaveNothingLate_WhenTheirDeadlinePasses) {
  leaves_nothing_late(Code::timed_out);
}

/// The peer is stopped first where it has to answer, so that something is in flight for sure.
TEST_P(RegionPairs, EndTogether_WhenThePeerIsKilled) {
  Engine engine = take(Engine::open(engine_options("near")));
  std::optional<Pairs> out, in;
  for (const bool met : {false, true}) {  // with the connections made, or on the way to them
    FarEngine far(environment());
    const Peer peer = take(engine.connect(far.address()));
    out.emplace(memory_, engine, far, peer, GetParam());
    in.emplace(memory_, engine, far, peer, GetParam());
    if (met) out->serve();
    if (by_tcp()) far.process().signal(SIGSTOP);
    const Transfer moved[] = {take(out->start(Op::write)), take(in->start(Op::read))};
    far.process().kill();
    const auto limit = base::Deadline::after(base::Clock::steady(), 1s);
    std::size_t broken = 0;
    for (const Transfer& each : moved) {
      const Status end = each.wait(limit.left());
      ASSERT_TRUE(each.done()) << "not quiet a second after the kill: " << engine.dump();
      EXPECT_TRUE(end.ok() || end.code() == Code::disconnected) << end.to_string();
      broken += end.ok() ? 0 : 1;
    }
    if (by_tcp()) {
      EXPECT_GT(broken, 0u) << "this test shows nothing";
    }
    ASSERT_TRUE(is_down(peer, base::Deadline::after(base::Clock::steady(), 5s)));
    EXPECT_EQ(out->start(Op::write).status().code(), Code::disconnected);
    out->fill_here(100);
    in->fill_here(200);
    FarEngine next(environment());
    Pairs(memory_, engine, next, take(engine.connect(next.address())), GetParam()).serve();
    out->expect_untouched_here();
    in->expect_untouched_here();
    out->deregister(engine);
    in->deregister(engine);
  }
}

/// A stopped peer by TCP keeps the transfer in flight for sure.
TEST_P(RegionPairs, KeepARegionBusy_WhenItIsDeregisteredInTheirMidst) {
  Pair pair(environment());
  Pairs out = make(pair);
  out.serve();  // the connections are made
  out.fill(100);
  if (by_tcp()) pair.far.process().signal(SIGSTOP);
  const Transfer moved = take(out.start(Op::write));
  const std::size_t last = kPairs - 1;
  const Status asked = pair.engine.deregister(out.here(last), by_tcp() ? 20ms : 0ms);
  EXPECT_TRUE(asked.code() == Code::busy || (asked.ok() && !by_tcp())) << asked.to_string();
  EXPECT_EQ(out.start_one(Op::write, last).status().code(), Code::invalid_argument);
  if (by_tcp()) pair.far.process().signal(SIGCONT);
  const Status end = moved.wait(10s);
  ASSERT_TRUE(moved.done()) << pair.engine.dump();
  EXPECT_EQ(end.to_string(), "ok");
  out.expect_moved(Op::write);
  EXPECT_EQ(pair.engine.deregister(out.here(last), asked.ok() ? 0s : 5s).ok(), !asked.ok());
  for (std::size_t i = 0; i < last; ++i)
    EXPECT_EQ(finished(out.start_one(Op::write, i)).to_string(), "ok");
}

TEST_P(RegionPairs, EndTogether_WhenOneIsInvalidated) {
  Pair pair(environment());
  Pairs out = make(pair), in = make(pair), later = make(pair);
  later.serve();
  if (by_tcp()) pair.far.process().signal(SIGSTOP);
  const Transfer moved[] = {take(out.start(Op::write)), take(in.start(Op::read))};
  const auto invalidate = [&](const Pairs& each, Duration timeout) {
    return pair.engine.invalidate(each.here(kPairs - 1), timeout);
  };
  Status asked[] = {invalidate(out, by_tcp() ? 20ms : 5s), invalidate(in, by_tcp() ? 20ms : 5s)};
  if (by_tcp()) {
    EXPECT_EQ(asked[0].code(), Code::busy) << asked[0].to_string();
    EXPECT_EQ(moved[0].status().code(), Code::pending) << "the stopped peer has bytes of it";
    pair.far.process().signal(SIGCONT);
  }
  for (const Transfer& each : moved) {
    const Status end = each.wait(10s);
    ASSERT_TRUE(each.done()) << pair.engine.dump();
    EXPECT_TRUE(end.ok() || end.code() == Code::canceled) << end.to_string();
  }
  if (asked[0].code() == Code::busy) asked[0] = invalidate(out, 5s);
  if (asked[1].code() == Code::busy) asked[1] = invalidate(in, 5s);
  for (const Status& each : asked) EXPECT_EQ(each.to_string(), "ok");
  EXPECT_EQ(out.start(Op::write).status().code(), Code::invalid_argument);
  out.fill(100);
  in.fill(200);
  later.serve();
  out.expect_untouched();
  in.expect_untouched();
  EXPECT_EQ(finished(out.start_one(Op::write, 0)).to_string(), "ok");
}

INSTANTIATE_TEST_SUITE_P(Every, RegionPairs, ::testing::ValuesIn(kCases),
                         [](const auto& param) { return param.param.name; });

}  // namespace region_pairs_test
}  // namespace linkspan::test
