// Tests transfers on every route that end early, by a cancel or their deadline, at random moments.
// Once one is quiet, its destination belongs to the user again: bytes stored there at once stay,
// and a final check of all destinations finds no late byte.
#include <cstdlib>
#include <map>
#include <random>

#include "tests/conformance/engine_fixture.hpp"

namespace linkspan::test {
namespace cancel_test {

constexpr std::uint64_t kBytes = 2u << 20, kParts = 16, kPiece = 1024;
constexpr Duration kWatch = 2s;

struct RouteCase {
  const char* path;  // what explain() says, or its beginning
  Kind near, far;
  bool exclusive = false, pieces = false;
};
constexpr RouteCase kRoutes[] = {
    {"memfd+cpu_threads", kKinds[3], kKinds[4]},
    {"kernel+cross_process", kKinds[3], kKinds[3]},
    {"memfd+cpu_threads", kKinds[4], kKinds[3], true},  // by the peer
    {"cuda_ipc+copy_engine", kKinds[0], kKinds[1]},
    {"cuda_ipc+", kKinds[0], kKinds[1], false, true},  // the SM kernel, where the build has it
    {"cuda_ipc+pageable", kKinds[3], kKinds[0]},
    {"cuda_ipc+pageable", kKinds[0], kKinds[3]},     // by the peer
    {"cuda_ipc+copy_engine", kKinds[1], kKinds[2]},  // by the peer
};

/// The two memories of one route in one direction.
class Case {
 public:
  Case(Pair& pair, const RouteCase& route, Op op, std::size_t index)
      : pair_(pair),
        route_(route),
        op_(op),
        name_(std::to_string(index) + (op == Op::write ? " write" : " read")) {
    near_ = Held::make(pair.engine, {.kind = route.near.name, .bytes = kBytes});
    pair.far.add(name_, {.kind = route.far.name,
                         .bytes = kBytes,
                         .peers = {.read = true, .write = true, .exclusive = route.exclusive}});
    remote_ = pair.remote(name_);
    const auto way =
        take(pair.peer.explain(op, near_.region, remote_, part(0, kBytes).size(), kBytes));
    EXPECT_TRUE(way.path.starts_with(route.path)) << way.path << " is not " << route.path;
    fill();
  }

  /// Returns `bytes` of the `i`-th part of the memory. Parts do not overlap, so neither do
  /// transfers.
  std::vector<Block> part(std::uint64_t i, std::uint64_t bytes) const {
    Block whole = part_of(kBytes, i, kParts);
    whole.bytes = std::min(whole.bytes, bytes);
    if (!route_.pieces) return {whole};
    std::vector<Block> blocks;
    for (std::uint64_t at = 0; at + kPiece <= whole.bytes; at += kPiece)
      blocks.push_back({whole.local_offset + at, whole.remote_offset + at, kPiece - 24});
    return blocks;
  }
  Transfer start(std::uint64_t i, std::uint64_t bytes, Duration deadline) {
    const std::vector<Block> blocks = part(i, bytes);
    const TransferOptions options{.deadline = deadline};
    return take(op_ == Op::write ? pair_.peer.write(near_.region, remote_, blocks, options)
                                 : pair_.peer.read(near_.region, remote_, blocks, options));
  }
  /// Fills both sides with different bytes.
  void fill() {
    ++seed_;
    near_.fill(here());
    pair_.far.fill(name_, there());
  }
  /// Uses the destination of the `i`-th part, which belongs to the user again.
  void use(std::uint64_t i) {
    const Block part = part_of(kBytes, i, kParts);
    const Extent extent{part.local_offset, part.bytes};
    if (op_ == Op::read)
      near_.fill(used(), extent);
    else
      pair_.far.fill(name_, used(), extent);
  }
  /// Checks, once all parts are used, that the destination has nothing else and the source is
  /// unchanged.
  void poll() const {
    const std::vector<Expected> all{{0, used(), 0, kBytes}}, none;
    EXPECT_EQ(near_.difference(here(), op_ == Op::read ? all : none), "") << name_ << ", here";
    EXPECT_EQ(pair_.far.difference(name_, there(), op_ == Op::write ? all : none), "")
        << name_ << ", there";
  }

 private:
  std::uint64_t here() const noexcept { return 3 * seed_; }
  std::uint64_t there() const noexcept { return 3 * seed_ + 1; }
  std::uint64_t used() const noexcept { return 3 * seed_ + 2; }

  Pair& pair_;
  const RouteCase& route_;
  const Op op_;
  const std::string name_;
  Held near_;
  RemoteRegion remote_;
  std::uint64_t seed_ = 0;
};

struct Moved {
  Transfer transfer;
  Case* of;
  std::uint64_t part;
  base::Time cancel_at;  // or the end of time: its deadline is short
  bool canceled = false, quiet = false;
};

/// Cancels what is due, and uses the memory of what is quiet. How many are not.
std::size_t go_on(std::vector<Moved>& moved) {
  std::size_t left = 0;
  for (Moved& each : moved) {
    if (!each.canceled && each.cancel_at <= base::Clock::steady().now()) {
      each.canceled = true;
      const Status asked = each.transfer.cancel();
      EXPECT_TRUE(asked.ok() || asked.code() == Code::pending) << asked.to_string();
    }
    if (!each.quiet && each.transfer.done()) {
      each.quiet = true;
      each.of->use(each.part);
    }
    left += each.quiet ? 0 : 1;
  }
  return left;
}

TEST(CancelInFlight, NoByteLandsLateOnAnyRoute) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const base::Clock& clock = base::Clock::steady();
  std::vector<std::unique_ptr<Case>> cases;  // their memory outlives the Engine
  Pair pair;
  for (std::size_t i = 0; i < std::size(kRoutes); ++i) {
    if (!kinds_here({kRoutes[i].near, kRoutes[i].far}).ok()) continue;
    for (const Op op : {Op::write, Op::read})
      cases.push_back(std::make_unique<Case>(pair, kRoutes[i], op, i));
  }

  std::map<std::string, std::size_t> ends;
  for (int round = 0; round < 3; ++round) {
    std::vector<Moved> moved;
    for (std::uint64_t i = 0; i < kParts; ++i) {
      for (const auto& each : cases) {
        const bool by_deadline = random() % 2 == 0;
        const Duration in = 1us * ((1u << random() % 13) - 1);  // as many soon as late
        const std::uint64_t bytes = kBytes / kParts >> random() % 4 * 4;
        const Transfer started = each->start(i, bytes, by_deadline ? in + 1us : 30s);
        moved.push_back(
            {started, each.get(), i, by_deadline ? base::Time::max() : clock.now() + in});
        go_on(moved);
      }
    }
    const auto limit = base::Deadline::after(clock, 10s);
    while (go_on(moved) != 0) {
      ASSERT_FALSE(limit.passed()) << pair.engine.dump();
      pair.engine.progress();
    }
    for (const Moved& each : moved) {
      const Status end = each.transfer.status();
      const bool by_deadline = each.cancel_at == base::Time::max();
      EXPECT_TRUE(end.ok() || end.code() == (by_deadline ? Code::timed_out : Code::canceled))
          << end.to_string();
      ++ends[name_of(end.code())];
    }
    for (const auto& each : cases) each->poll();
    if (round != 2)
      for (const auto& each : cases) each->fill();
  }
  for (const auto& [end, count] : ends) std::printf("%zu %s, ", count, end.c_str());
  std::printf("seed %zu\n", std::size_t{seed});
  EXPECT_GT(ends["canceled"], 0u) << "each was faster than its cancel: this test shows nothing";
  EXPECT_GT(ends["timed_out"], 0u) << "each was faster than its deadline";

  const auto limit = base::Deadline::after(clock, kWatch);
  do {
    for (const auto& each : cases) each->poll();
  } while (!limit.passed() && !HasFailure());
}

}  // namespace cancel_test
}  // namespace linkspan::test
