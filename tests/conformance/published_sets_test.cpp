// Tests sets published under one name: a reader gets the regions of one version, whatever is
// published meanwhile.
#include <cstring>
#include <future>
#include <thread>

#include "tests/conformance/engine_fixture.hpp"
#include "tests/support/sanitizer_order.hpp"

namespace linkspan::test {
namespace published_sets_test {

constexpr const char* kReader = "set_reader";
/// Sizes of the regions of a set. The first holds the number of its generation, the others its
/// pattern.
constexpr std::uint64_t kSizes[] = {8, 1, 777, 4097, 70001, 300003};
constexpr std::size_t kRegions = std::size(kSizes);

std::uint64_t seed_of(std::uint64_t generation, std::size_t region) {
  return generation * 100 + region;
}

// ---- a reader in a process of its own ----------------------------------------------------------

class Reader {
 public:
  Json handle(const Json& call) {
    const auto what = call.at("do").get<std::string>();
    if (what == "connect") {
      for (std::size_t i = 0; i < kRegions; ++i)
        held_.push_back(
            Held::make(engine_, {.kind = i % 2 == 0 ? "host" : "shared", .bytes = kSizes[i]}));
      peer_ = take(engine_.connect(call.at("address").get<std::string>()));
      return {};
    }
    const auto until = base::Deadline::after(base::Clock::steady(), call.at("ms").get<int>() * 1ms);
    std::uint64_t rounds = 0, lost = 0, versions = 0, last = 0, generation = 0;
    while (!until.passed()) {
      const RegionSet set = take(peer_.lookup_set("weights", 20s));
      if (set.regions.size() != kRegions) throw std::runtime_error("not all of them");
      if (set.version < last) throw std::runtime_error("back to an older version");
      const auto read = take_all(set);
      if (!read) {  // its owner has taken it back: so there is another
        ++lost;
        take(peer_.await_version("weights", set.version, 20s));
        continue;
      }
      if (*read < generation || (*read == generation) != (set.version == last))
        throw std::runtime_error("a version with the bytes of another");
      versions += set.version != last ? 1 : 0;
      last = set.version;
      generation = *read;
      ++rounds;
    }
    return {{"rounds", rounds}, {"versions", versions}, {"lost", lost}, {"last", last}};
  }

 private:
  /// Returns the generation of all its bytes; nullopt if one of its regions is gone.
  std::optional<std::uint64_t> take_all(const RegionSet& set) {
    std::vector<Transfer> moved;
    bool all = true;
    for (std::size_t i = 0; i < kRegions; ++i) {
      held_[i].fill(7);
      const Block whole{0, 0, kSizes[i]};
      auto read = peer_.read(held_[i].region, set.regions[i], std::span(&whole, 1));
      all = all && read.ok();
      if (read.ok()) moved.push_back(*read);
    }
    for (const Transfer& each : moved) all = each.wait(20s).ok() && all;
    if (!all) return std::nullopt;
    test::order_accesses(engine_);
    std::uint64_t generation = 0;
    std::memcpy(&generation, held_[0].at(0), sizeof(generation));
    for (std::size_t i = 1; i < kRegions; ++i) {
      const std::string wrong = held_[i].difference(7, {{0, seed_of(generation, i), 0, kSizes[i]}});
      if (!wrong.empty()) throw std::runtime_error("region " + std::to_string(i) + ": " + wrong);
    }
    return generation;
  }

  std::vector<Held> held_;  // outlives the Engine
  Engine engine_ = take(Engine::open(engine_options("reader")));
  Peer peer_;
};

void reader_main(Line& line) {
  Reader reader;
  line.serve(
      [&](const Json& call, const std::vector<base::Fd>&) -> Result<Answer> {
        return Answer{reader.handle(call), {}};
      },
      [] { return false; });
}
const bool kRegistered = add_helper(kReader, reader_main);

// ---- the publisher -----------------------------------------------------------------------------

/// A version of fresh, filled memory of every kind.
struct Generation {
  Generation(Engine& engine, std::uint64_t number) {
    const bool gpu = kinds_here({kKinds[0]}).ok();
    const char* const kinds[] = {"shared", "host", gpu ? "device0" : "shared",
                                 gpu ? "pinned" : "host"};
    for (std::size_t i = 0; i < kRegions; ++i) {
      held.push_back(Held::make(engine, {.kind = kinds[i % 4], .bytes = kSizes[i]}));
      held[i].fill(seed_of(number, i));
      regions.push_back(held[i].region);
    }
    std::memcpy(held[0].at(0), &number, sizeof(number));
  }
  /// Ends the version; its bytes then change.
  Status end(Engine& engine) {
    for (const Held& each : held)
      if (Status status = engine.deregister(each.region, 20s); !status.ok()) return status;
    for (Held& each : held) each.fill(3);
    return {};
  }
  std::vector<Held> held;
  std::vector<Region> regions;
};

TEST(PublishedSets, FarReadersSeeOneVersionWhateverIsPublished) {
  std::unique_ptr<Generation> now, before;  // outlive the Engine
  Engine owner = take(Engine::open(engine_options("owner")));
  must(owner.listen());
  std::uint64_t number = 1;
  now = std::make_unique<Generation>(owner, number);
  std::uint64_t version = take(owner.publish("weights", now->regions));
  std::unique_ptr<Child> readers[] = {take(Child::spawn(kReader)), take(Child::spawn(kReader))};
  for (const auto& each : readers)
    take(each->line().call({{"do", "connect"}, {"address", owner.address()}}));
  std::vector<std::future<Result<Answer>>> answers;
  for (const auto& each : readers)
    answers.push_back(std::async(std::launch::async, [&line = each->line()] {
      return line.call({{"do", "read"}, {"ms", 2000}});
    }));
  const auto reading = [&] {
    for (const auto& each : answers)
      if (each.wait_for(0s) != std::future_status::ready) return true;
    return false;
  };
  while (reading()) {
    before = std::exchange(now, std::make_unique<Generation>(owner, ++number));
    const std::uint64_t next = take(owner.publish("weights", now->regions));
    EXPECT_GT(next, version);
    version = next;
    const Status ended = before->end(owner);
    EXPECT_EQ(ended.to_string(), "ok");
    if (!ended.ok()) break;
  }
  for (auto& each : answers) {
    const Result<Answer> told = each.get();
    ASSERT_TRUE(told.ok()) << told.status().to_string();
    EXPECT_GT(told->value.at("rounds").get<std::uint64_t>(), 0u) << told->value.dump();
    EXPECT_LE(told->value.at("last").get<std::uint64_t>(), version);
    RecordProperty("reader", told->value.dump());
  }
  EXPECT_GT(number, 2u);
}

// ---- the rest, between two Engines of this process
// -----------------------------------------------

class Sets : public ::testing::Test {
 protected:
  void SetUp() override {
    must(owner.listen());
    peer = take(reader.connect(owner.address()));
    for (std::size_t i = 0; i < 5; ++i) {
      held.push_back(Held::make(owner, {.kind = "shared", .bytes = 64 + i}));
      held[i].fill(i);
      regions.push_back(held[i].region);
    }
  }
  std::vector<Region> some(std::initializer_list<std::size_t> which) {
    std::vector<Region> chosen;
    for (const std::size_t i : which) chosen.push_back(regions[i]);
    return chosen;
  }
  /// Returns the sizes of its regions.
  static std::vector<std::uint64_t> sizes(const RegionSet& set) {
    std::vector<std::uint64_t> all;
    for (const RemoteRegion& each : set.regions) all.push_back(each.bytes() - 64);
    return all;
  }
  static void refused(const Status& status, Code code, const std::string& named) {
    EXPECT_EQ(status.code(), code) << status.to_string();
    EXPECT_NE(status.what().find(named), std::string::npos)
        << "\"" << status.what() << "\" does not name " << named;
  }
  using Sizes = std::vector<std::uint64_t>;

  std::vector<Held> held;  // outlives the Engines
  Engine owner = take(Engine::open(engine_options("owner")));
  Engine reader = take(Engine::open(engine_options("reader")));
  Peer peer;
  std::vector<Region> regions;
};

TEST_F(Sets, ARegionIsASetOfOne) {
  must(owner.publish("one", regions[0]));
  const RegionSet one = take(peer.lookup_set("one"));
  EXPECT_EQ(sizes(one), Sizes{0});
  EXPECT_EQ(one.regions[0].name(), "one");
  EXPECT_EQ(take(peer.await_version("one", 0, 5s)), one.version);
  const std::uint64_t second = take(owner.publish("one", some({1})));
  EXPECT_GT(second, one.version);
  EXPECT_EQ(take(peer.lookup("one")).bytes(), 65u);
  refused(owner.publish("one", regions[0]), Code::invalid_argument, "\"one\"");
}

TEST_F(Sets, OfSeveralALookupNamesTheRemedy) {
  const std::uint64_t version = take(owner.publish("w", some({0, 1, 2})));
  refused(peer.lookup("w").status(), Code::invalid_argument, "lookup_set()");
  const RegionSet set = take(peer.lookup_set("w"));
  EXPECT_EQ(sizes(set), (Sizes{0, 1, 2}));
  EXPECT_EQ(set.version, version);
}

TEST_F(Sets, KeepsWhatStaysAndTellsTheSameTwice) {
  const std::uint64_t first = take(owner.publish("w", some({0, 1, 0})));
  const RegionSet old = take(peer.lookup_set("w"));
  EXPECT_EQ(sizes(old), (Sizes{0, 1, 0}));
  EXPECT_GT(take(owner.publish("w", some({1, 2}))), first);
  EXPECT_EQ(sizes(take(peer.lookup_set("w"))), (Sizes{1, 2}));
  // A reader of the old set goes on reading it until its owner ends it.
  Held here = Held::make(reader, {.kind = "host", .bytes = 64});
  here.fill(9);
  const Block all{0, 0, 64};
  EXPECT_EQ(finished(peer.read(here.region, old.regions[0], std::span(&all, 1))).to_string(), "ok");
  EXPECT_EQ(here.difference(9, {{0, 0, 0, 64}}), "");
  EXPECT_EQ(owner.deregister(regions[0], 20ms).code(), Code::busy);
  EXPECT_EQ(finished(peer.read(here.region, old.regions[0], std::span(&all, 1))).code(),
            Code::unreachable);
  EXPECT_EQ(sizes(take(peer.lookup_set("w"))), (Sizes{1, 2}));  // of which that was none
  EXPECT_EQ(reader.deregister(here.region).to_string(), "ok");
}

TEST_F(Sets, EndsWithTheFirstOfItsRegions) {
  const std::uint64_t first = take(owner.publish("w", some({0, 1})));
  must(owner.deregister(regions[0]));
  EXPECT_EQ(peer.lookup_set("w").status().code(), Code::not_found);
  EXPECT_EQ(peer.lookup("w").status().code(), Code::not_found);
  must(owner.publish("alone", regions[1]));  // it is free
  EXPECT_GT(take(owner.publish("w", some({1, 2}))), first);
  EXPECT_EQ(peer.lookup("alone").status().code(), Code::not_found);  // and has moved
}

TEST_F(Sets, RefusesBadOnesAndChangesNothing) {
  const std::uint64_t version = take(owner.publish("w", some({0, 1})));
  Held other_held;
  Engine other = take(Engine::open(engine_options("other")));
  other_held = Held::make(other, {.kind = "host", .bytes = 10});
  const auto refuse = [&](std::string_view name, const std::vector<Region>& set, Code code,
                          const std::string& named) {
    refused(owner.publish(name, set).status(), code, named);
  };
  refuse("w", {}, Code::invalid_argument, "1024");
  refuse("w", std::vector<Region>(1025, regions[2]), Code::invalid_argument, "1025");
  refuse("", some({2}), Code::invalid_argument, "name");
  refuse(std::string(257, 'x'), some({2}), Code::invalid_argument, "256");
  refuse("w", {regions[2], Region()}, Code::invalid_argument, "number 1");
  refuse("w", {regions[2], regions[3], other_held.region}, Code::not_found, "number 2");
  refuse("v", some({2, 1}), Code::invalid_argument, "\"w\"");
  refused(owner.publish("v", regions[1]), Code::invalid_argument, "\"w\"");
  const RegionSet set = take(peer.lookup_set("w"));
  EXPECT_EQ(set.version, version);
  EXPECT_EQ(sizes(set), (Sizes{0, 1}));
  EXPECT_EQ(peer.lookup_set("v").status().code(), Code::not_found);
  EXPECT_EQ(peer.lookup_set("").status().code(), Code::invalid_argument);
  EXPECT_EQ(peer.await_version(std::string(257, 'x'), 0, 1s).status().code(),
            Code::invalid_argument);
  EXPECT_EQ(Peer().lookup_set("w").status().code(), Code::invalid_argument);
}

TEST_F(Sets, HoldsAsManyRegionsAsItMay) {
  const std::vector<Region> most(1024, regions[4]);
  EXPECT_GT(take(owner.publish("w", most)), 0u);
  const RegionSet set = take(peer.lookup_set("w"));
  EXPECT_EQ(set.regions.size(), 1024u);
  EXPECT_EQ(set.regions.back().bytes(), 68u);
}

TEST_F(Sets, WhoWaitsIsToldOfTheNextVersion) {
  auto first = std::async(std::launch::async, [&] { return peer.await_version("w", 0, 20s); });
  EXPECT_EQ(first.wait_for(30ms), std::future_status::timeout);
  const std::uint64_t version = take(owner.publish("w", some({0})));
  EXPECT_EQ(take(first.get()), version);
  EXPECT_EQ(take(peer.await_version("w", version - 1, 20s)), version);
  refused(peer.await_version("w", version, 30ms).status(), Code::timed_out, "\"w\"");
  auto next = std::async(std::launch::async, [&] { return peer.await_version("w", version, 20s); });
  EXPECT_GT(take(owner.publish("other", some({1}))), version);
  must(owner.deregister(regions[0]));  // nothing is no version
  EXPECT_EQ(next.wait_for(30ms), std::future_status::timeout);
  const std::uint64_t later = take(owner.publish("w", some({2, 3})));
  EXPECT_EQ(take(next.get()), later);
}

TEST_F(Sets, WaitsAreBoundedAndGivenUp) {
  for (int i = 0; i < 200; ++i)  // each leaves its place when it gives up
    ASSERT_EQ(peer.await_version("w", 0, 0s).status().code(), Code::timed_out) << i;
  std::vector<std::future<Result<std::uint64_t>>> waiting;
  for (int i = 0; i < 65; ++i)
    waiting.push_back(
        std::async(std::launch::async, [&] { return peer.await_version("w", 0, 20s); }));
  const auto refused_one = [&] {
    for (auto& each : waiting)
      if (each.wait_for(0s) == std::future_status::ready) return &each;
    return static_cast<std::future<Result<std::uint64_t>>*>(nullptr);
  };
  const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
  while (refused_one() == nullptr && !limit.passed()) std::this_thread::yield();
  ASSERT_NE(refused_one(), nullptr);
  EXPECT_EQ(refused_one()->get().status().code(), Code::no_resource);
  const std::uint64_t version = take(owner.publish("w", some({0})));
  for (auto& each : waiting) {
    if (each.valid()) {
      EXPECT_EQ(take(each.get()), version);
    }
  }
}

TEST_F(Sets, WaitsEndWithEitherEngine) {
  auto wait = std::async(std::launch::async, [&] { return peer.await_version("w", 0, 20s); });
  EXPECT_EQ(wait.wait_for(30ms), std::future_status::timeout);
  must(owner.close(5s));
  EXPECT_EQ(wait.get().status().code(), Code::disconnected);
  Engine again = take(Engine::open(engine_options("again")));
  must(again.listen());
  const Peer second = take(reader.connect(again.address()));
  wait = std::async(std::launch::async, [&] { return second.await_version("w", 0, 20s); });
  EXPECT_EQ(wait.wait_for(30ms), std::future_status::timeout);
  must(reader.close(5s));
  EXPECT_EQ(wait.get().status().code(), Code::canceled);
}

}  // namespace published_sets_test
}  // namespace linkspan::test
