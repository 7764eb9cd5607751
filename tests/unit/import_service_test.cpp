// Tests the imports of a peer's regions: each answer of a peer, and each end without one.
#include "engine/directory/import_service.hpp"

#include <future>

#include "memory/descriptor.hpp"
#include "tests/unit/engine_pair.hpp"

namespace linkspan::engine {
namespace import_service_test {

using namespace std::chrono_literals;
using control::FrameOp;
using test::impl_of, test::is, test::must, test::RawPeer, test::take;

/// Calls on another thread.
template <class Call>
std::future<std::invoke_result_t<Call>> begin(Call call) {
  return std::async(std::launch::async, std::move(call));
}

class Imports : public test::EnginePair {
 protected:
  static Engine& listening(Engine& engine) {
    must(engine.listen());
    return engine;
  }
  std::uint64_t id() const { return raw_.peer().id(); }
  std::future<Status> lookup(std::string name, Duration timeout = 10s) {
    return begin([this, name, timeout] { return service_.lookup(id(), name, timeout).status(); });
  }
  auto lookup_set(Duration timeout = 10s) {
    return begin([this, timeout] { return service_.lookup_set(id(), "set", timeout).status(); });
  }
  void answer(std::uint64_t request, Code code, std::string what) {
    raw_.send(FrameOp::error, request,
              control::encode_error({code, Scope::request, std::move(what)}));
  }
  void answer_set(std::uint64_t request, memory::PublishedSet set) {
    raw_.send(FrameOp::set, request, control::encode_set(set));
  }
  /// Answers the next import with a descriptor.
  void answer_import(const memory::Descriptor& descriptor) {
    const auto question = raw_.next(FrameOp::import);
    raw_.send(FrameOp::imported, question.header.id,
              control::encode_imported(memory::encode(descriptor)));
  }
  static memory::Descriptor descriptor() {
    return {.name = "x",
            .id = {.incarnation = test::kRawIncarnation, .buffer = 0, .serial = 3},
            .kind = MemoryKind::host,
            .peers = {.read = true},
            .gpu = {},
            .bytes = 4096,
            .keys = {}};
  }

  ImportService& service_ = impl_of(near_).services().imports;
  RawPeer raw_{listening(near_)};
};

TEST_F(Imports, KnowTheRegion) {
  const auto [region, remote] = share("data", 8192, {.read = true});
  const auto imported = take(service_.lookup(to_far_.id(), "data", 10s));
  EXPECT_EQ(imported->peer, to_far_.id());
  EXPECT_EQ(imported->name, "data");
  EXPECT_EQ(imported->bytes, 8192u);
  EXPECT_EQ(imported->kind, MemoryKind::shared);
  EXPECT_TRUE(imported->peers.read && !imported->peers.write);
  EXPECT_TRUE(std::ranges::any_of(imported->mappings, [](const auto& m) { return m != nullptr; }));
}

TEST_F(Imports, OfASetAreAllOfItsNewestVersion) {
  std::vector<Region> regions;
  for (const std::uint64_t bytes : {4096u, 8192u})
    regions.push_back(take(far_.allocate_shared(bytes)));
  (void)take(far_.publish("set", std::span(regions).first(1)));
  const std::uint64_t version = take(far_.publish("set", regions));
  const auto set = take(service_.lookup_set(to_far_.id(), "set", 10s));
  EXPECT_EQ(set.version, version);
  ASSERT_EQ(set.regions.size(), 2u);
  EXPECT_EQ(set.regions[1]->bytes, 8192u);
  EXPECT_EQ(take(service_.await_version(to_far_.id(), "set", version - 1, 10s)), version);
}

TEST_F(Imports, OfASetTakeWhatIsKnown) {
  std::vector<Region> regions;
  for (int i = 0; i < 3; ++i) regions.push_back(take(far_.allocate_shared(4096)));
  (void)take(far_.publish("set", std::span(regions).first(2)));
  const auto before = take(service_.lookup_set(to_far_.id(), "set", 10s));
  const std::vector<Region> grown = {regions[1], regions[0], regions[2], regions[1]};
  const std::uint64_t version = take(far_.publish("set", grown));
  const auto asked = [&] {
    return test::metric(far_, "keys_sent_total{peer=\"" + std::to_string(to_near_.id()) +
                                  "\",name=\"" + to_near_.name() + "\"}");
  };
  const auto keys = asked();
  const auto after = take(service_.lookup_set(to_far_.id(), "set", 10s, before.regions));
  EXPECT_EQ(after.version, version);
  ASSERT_EQ(after.regions.size(), 4u);
  EXPECT_EQ(after.regions[0], before.regions[1]);
  EXPECT_EQ(after.regions[1], before.regions[0]);
  EXPECT_EQ(after.regions[3], before.regions[1]);
  EXPECT_NE(after.regions[2], nullptr);
  EXPECT_EQ(asked().value() - keys.value(), 1u) << "the new region alone";
}

TEST_F(Imports, OfManyNamesAreOneForEachName) {
  std::vector<Region> regions;
  std::vector<std::string> names;
  for (std::uint64_t i = 0; i < 40; ++i) {
    names.push_back("many/" + std::to_string(i));
    regions.push_back(take(far_.allocate_shared(4096 * (i + 1))));
    must(far_.publish(names.back(), regions.back()));
  }
  const auto imported = take(service_.lookup_all(to_far_.id(), names, 10s));
  ASSERT_EQ(imported.size(), names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(imported[i]->name, names[i]);
    EXPECT_EQ(imported[i]->bytes, 4096 * (i + 1));
  }
  EXPECT_TRUE(take(service_.lookup_all(to_far_.id(), {}, 10s)).empty());
  names[7] = "none";
  EXPECT_TRUE(is(service_.lookup_all(to_far_.id(), names, 10s).status(), Code::not_found, "none"));
  names[7] = "";
  EXPECT_TRUE(
      is(service_.lookup_all(to_far_.id(), names, 10s).status(), Code::invalid_argument, "has 0"));
}

TEST_F(Imports, OfManyNamesAreAskedForTogether_AndFailAsTheFirstThatDoes) {
  const std::vector<std::string> names(20, "x");
  auto ended = begin([&] { return service_.lookup_all(id(), names, 10s).status(); });
  std::vector<std::uint64_t> requests;
  for (int i = 0; i < 16; ++i) requests.push_back(raw_.next(FrameOp::import).header.id);
  for (std::size_t i = requests.size(); i-- != 0;)
    answer(requests[i], Code::not_found, "number " + std::to_string(i));
  EXPECT_TRUE(is(ended.get(), Code::not_found, "number 0"));
  raw_.send(FrameOp::import, 1, control::encode_import("nothing"));
  EXPECT_TRUE(is(raw_.next_error(), Code::not_found)) << "nothing more was asked";
}

TEST_F(Imports, RefuseANameThatNoRegionHas) {
  const std::string longest(memory::kMaxNameBytes, 'n');
  EXPECT_TRUE(is(service_.lookup(to_far_.id(), longest, 10s).status(), Code::not_found));
  for (const std::string& name : {std::string(), longest + "n"}) {
    EXPECT_TRUE(is(service_.lookup(to_far_.id(), name, 10s).status(), Code::invalid_argument,
                   "has " + std::to_string(name.size())));
    EXPECT_TRUE(is(service_.lookup_set(to_far_.id(), name, 10s).status(), Code::invalid_argument));
    EXPECT_TRUE(
        is(service_.await_version(to_far_.id(), name, 0, 10s).status(), Code::invalid_argument));
  }
}

TEST_F(Imports, EndAtOnce_WhenThereIsNoSuchPeer) {
  EXPECT_TRUE(is(service_.lookup(77, "x", 1h).status(), Code::disconnected, "peer 77 is gone"));
  EXPECT_TRUE(is(service_.lookup_set(77, "x", 1h).status(), Code::disconnected));
  EXPECT_TRUE(is(service_.await_version(77, "x", 0, 1h).status(), Code::disconnected));
}

TEST_F(Imports, GiveThePeersErrorBack) {
  auto ended = lookup("x");
  const auto question = raw_.next(FrameOp::import);
  EXPECT_EQ(take(control::decode_import(question.payload)).name, "x");
  answer(question.header.id, Code::permission_denied, "not for you");
  EXPECT_TRUE(is(ended.get(), Code::permission_denied, "not for you"));
}

TEST_F(Imports, TimeOutAndIgnoreALateAnswer) {
  EXPECT_TRUE(is(lookup("x", 20ms).get(), Code::timed_out, R"(did not answer for "x" in time)"));
  const std::uint64_t late = raw_.next(FrameOp::import).header.id;
  auto ended = lookup("y");
  const std::uint64_t request = raw_.next(FrameOp::import).header.id;
  EXPECT_NE(request, late);
  answer(late, Code::corrupt, "late");
  answer_set(late, {.version = 1, .serials = {1}});
  answer(request + 50, Code::corrupt, "never asked");
  answer(request, Code::not_found, "the answer");
  answer(request, Code::corrupt, "twice");
  EXPECT_TRUE(is(ended.get(), Code::not_found, "the answer"));
  EXPECT_EQ(raw_.peer().state(), PeerState::up);
}

TEST_F(Imports, AreOfThePeerThatWasAsked) {
  RawPeer other(near_);
  auto ended = lookup("x");
  const std::uint64_t request = raw_.next(FrameOp::import).header.id;
  other.send(FrameOp::error, request,
             control::encode_error({Code::corrupt, Scope::request, "of another peer"}));
  other.send(FrameOp::import, 1, control::encode_import("nothing"));
  EXPECT_TRUE(is(other.next_error(), Code::not_found));  // so the first frame was handled
  answer(request, Code::not_found, "the answer");
  EXPECT_TRUE(is(ended.get(), Code::not_found, "the answer"));
}

TEST_F(Imports, AreNoSets) {
  auto ended = lookup("x");
  answer_set(raw_.next(FrameOp::import).header.id, {.version = 1, .serials = {1}});
  EXPECT_TRUE(is(ended.get(), Code::corrupt, "something else than it was asked"));
}

TEST_F(Imports, RefuseDescriptorsThatLie) {
  memory::Descriptor lie = descriptor();
  ++lie.id.incarnation;
  auto ended = lookup("x");
  answer_import(lie);
  EXPECT_TRUE(is(ended.get(), Code::corrupt, "of another Engine's region"));
  lie = descriptor();
  lie.keys.push_back({.transport = "local", .bytes = {}, .fd_count = 1, .bearer = false});
  ended = lookup("x");
  answer_import(lie);
  EXPECT_TRUE(is(ended.get(), Code::corrupt, "without its fds"));
  lie = descriptor();
  lie.keys.push_back({.transport = "pigeon", .bytes = {}, .fd_count = 0, .bearer = false});
  ended = lookup("x");
  answer_import(lie);
  EXPECT_TRUE(is(ended.get(), Code::unreachable, R"("x" has a key for no transport of ours)"));
  EXPECT_EQ(test::metric(near_, R"(imports_failed_total{peer=")" + std::to_string(id()) +
                                    R"(",name="odd"})"),
            3u);
}

TEST_F(Imports, OfASetBeginAgain_WhenItIsPublishedAnewMeanwhile) {
  auto ended = lookup_set(1s);
  for (const std::uint64_t version : {1u, 2u}) {
    const auto question = raw_.next(FrameOp::ask_set);
    EXPECT_FALSE(take(control::decode_ask_set(question.payload)).waits);
    answer_set(question.header.id, {.version = version, .serials = {10 + version, 20}});
    const auto import = raw_.next(FrameOp::import);
    EXPECT_EQ(take(control::decode_import(import.payload)).serial, 10 + version);
    EXPECT_EQ(take(control::decode_import(raw_.next(FrameOp::import).payload)).serial, 20u)
        << "asked for before the first is answered";
    answer(import.header.id, Code::not_found, "no more " + std::to_string(version));
  }
  (void)raw_.next(FrameOp::ask_set);
  const Status why = ended.get();
  EXPECT_TRUE(is(why, Code::timed_out, "begun 2 times"));
  EXPECT_TRUE(is(why, Code::timed_out, "of version 2: the peer: no more 2"));
}

TEST_F(Imports, OfASetFail_WhenItsVersionStays) {
  auto ended = lookup_set();
  for (int i = 0; i < 2; ++i) {
    answer_set(raw_.next(FrameOp::ask_set).header.id, {.version = 4, .serials = {5}});
    if (i == 0) answer(raw_.next(FrameOp::import).header.id, Code::unreachable, "too far");
  }
  EXPECT_TRUE(is(ended.get(), Code::unreachable, "too far"));
}

TEST_F(Imports, AwaitAVersion) {
  auto version = begin([this] { return take(service_.await_version(id(), "set", 3, 10s)); });
  const auto question = raw_.next(FrameOp::ask_set);
  const control::AskSet ask = take(control::decode_ask_set(question.payload));
  EXPECT_TRUE(ask.waits);
  EXPECT_EQ(ask.above, 3u);
  answer_set(question.header.id, {.version = 9, .serials = {1}});
  EXPECT_EQ(version.get(), 9u);
}

TEST_F(Imports, TellThePeer_WhenAWaitForAVersionTimesOut) {
  EXPECT_TRUE(is(service_.await_version(id(), "set", 3, 20ms).status(), Code::timed_out,
                 R"(has published no "set" above version 3 in time)"));
  const auto question = raw_.next(FrameOp::ask_set), end = raw_.next(FrameOp::ask_set);
  EXPECT_EQ(question.header.id, end.header.id);
  EXPECT_TRUE(take(control::decode_ask_set(end.payload)).name.empty());
}

TEST_F(Imports, EndWithThePeer) {
  auto lost = lookup("x");
  (void)raw_.next(FrameOp::import);
  auto waits = begin([this] { return service_.await_version(id(), "set", 0, 10s).status(); });
  (void)raw_.next(FrameOp::ask_set);
  raw_.hang_up();
  EXPECT_TRUE(is(lost.get(), Code::disconnected));
  EXPECT_TRUE(is(waits.get(), Code::disconnected));
}

TEST_F(Imports, EndWithTheClosedPeerAlone) {
  RawPeer other(near_);
  auto closed = lookup("x");
  auto stays = begin([&] { return service_.lookup(other.peer().id(), "y", 10s).status(); });
  (void)raw_.next(FrameOp::import);
  const std::uint64_t request = other.next(FrameOp::import).header.id;
  service_.end_lookups(id(), {Code::canceled, Scope::peer, "it was closed"});
  EXPECT_TRUE(is(closed.get(), Code::canceled, "it was closed"));
  other.send(FrameOp::error, request,
             control::encode_error({Code::not_found, Scope::request, "none"}));
  EXPECT_TRUE(is(stays.get(), Code::not_found, "none"));
}

TEST_F(Imports, EndWithClose) {
  auto waits = lookup("x");
  (void)raw_.next(FrameOp::import);
  service_.close();
  EXPECT_TRUE(is(waits.get(), Code::canceled, "the Engine is closed"));
  EXPECT_TRUE(is(service_.lookup(id(), "y", 1h).status(), Code::canceled));
}

}  // namespace import_service_test
}  // namespace linkspan::engine
