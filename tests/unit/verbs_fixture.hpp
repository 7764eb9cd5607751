// tests/unit/verbs_fixture.hpp - two Engines' ends of the verbs transport in this process, over the
// simulated network cards.
//
// Threads: externally synchronised.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <initializer_list>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "memory/registry.hpp"
#include "tests/support/pattern.hpp"
#include "tests/support/take.hpp"
#include "tests/unit/fake_verbs_fixture.hpp"
#include "transport/verbs/verbs_endpoint.hpp"

namespace linkspan::transport::verbs {

using namespace std::chrono_literals;
using test::must, test::take;

/// A Channel whose messages wait until the test delivers them.
class WaitingChannel final : public Channel {
 public:
  explicit WaitingChannel(std::uint64_t peer) : peer_(peer) {}
  Status send(std::uint16_t op, std::span<const std::byte> bytes, std::span<base::Fd>) override {
    if (full) return Status::no_resource();
    sent.push_back({op, {bytes.begin(), bytes.end()}});
    return {};
  }
  SessionKey session_key() const noexcept override { return key_; }
  PeerProcess process() const noexcept override {
    return {.pid = 0, .pidfd = -1, .same_user = true, .incarnation = peer_};
  }
  std::string_view peer_name() const noexcept override { return "the other one"; }
  void deliver_notification(std::vector<std::byte>, std::uint64_t) override {}
  bool connects() const noexcept override { return false; }
  Status open_data_connection() override {
    return {Code::unsupported, Scope::peer, "no streams here"};
  }
  void fail_peer(const Status& why) override {
    if (std::exchange(no_memory, false)) throw std::bad_alloc();
    given_up = why;
  }
  void request_progress() override { ++requested; }

  struct Sent {
    std::uint16_t op;
    std::vector<std::byte> bytes;
  };
  std::deque<Sent> sent;
  bool full = false;
  bool no_memory = false;  // fail_peer() throws once
  Status given_up;
  int requested = 0;

 private:
  const std::uint64_t peer_;
  std::array<std::byte, 32> key_{};
};

/// One Engine's transport, some memory of it and its Endpoint for the other.
class VerbsSide final : public CompletionSink {
 public:
  static constexpr std::uint64_t kBytes = 1u << 20;

  VerbsSide(const Library& library, std::uint64_t incarnation, std::uint64_t peer,
            const base::Clock& clock, const SendLimits& limits, std::uint64_t bytes,
            decltype(nearness)* nearness_of)
      : channel(peer), memory(bytes), registry_(incarnation, nullptr) {
    transport = std::make_unique<VerbsTransport>(VerbsOptions{
        .rails = take(open_rails(library, {}, base::Log(base::Level::error, base::stderr_sink()))),
        .incarnation = incarnation,
        .limits = limits,
        .clock = &clock,
        .nearness_of = nearness_of});
    region_ = take(registry_.add(memory.data(), memory.size(), {true, true}, false));
    key = take(transport->publish(region_->region())).bytes;
  }
  void complete(Completion&& end) override {
    EXPECT_TRUE(ends.emplace(end.cookie, std::move(end.status)).second) << "completed twice";
  }
  const memory::Region& region() const { return region_->region(); }
  std::unique_ptr<Mapping> import(std::span<const std::byte> bytes) {
    return take(transport->import_key({.bytes = bytes, .fds = {}},
                                      base::Deadline::after(base::Clock::steady(), 10s)));
  }

  WaitingChannel channel;
  std::vector<std::byte> memory;
  std::unique_ptr<VerbsTransport> transport;
  std::vector<std::byte> key;
  std::unique_ptr<Mapping> remote;  // of the other's memory
  std::unique_ptr<Endpoint> endpoint;
  std::map<std::uint64_t, Status> ends;
  bool stopped = false;  // it handles no message and makes no progress

 private:
  memory::Registry registry_;
  std::shared_ptr<const memory::Registration> region_;  // also the registry's
};

class VerbsPair : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kNear = 11, kFar = 77;

  void SetUp() override {
    library_ = take(Library::load(fake_verbs_file().c_str()));
    fake = test::FakeVerbs::find(fake_verbs_file().c_str());
    ASSERT_TRUE(fake);
    fake.reset();
  }
  void TearDown() override {
    for (unsigned device : {0u, 1u}) fake.hold(device, 0);
    for (VerbsSide* side : {near.get(), far.get()})
      if (side != nullptr) side->endpoint.reset();
    near.reset();
    far.reset();
    fake.reset();
  }
  void connect(const SendLimits& limits = {}, std::uint64_t bytes = VerbsSide::kBytes,
               decltype(nearness)* nearness_of = nearness) {
    near = std::make_unique<VerbsSide>(library_, kNear, kFar, clock, limits, bytes, nearness_of);
    far = std::make_unique<VerbsSide>(library_, kFar, kNear, clock, limits, bytes, nearness_of);
    const auto deadline = base::Deadline::after(clock, 10s);
    near->endpoint =
        take(near->transport->connect(far->transport->address(), near->channel, deadline));
    far->endpoint =
        take(far->transport->connect(near->transport->address(), far->channel, deadline));
    near->remote = near->import(far->key);
    far->remote = far->import(near->key);
    fill(1);
  }
  /// Fills both memories with fresh patterns.
  void fill(std::uint64_t seed) {
    seed_ = 2 * seed;
    test::put_pattern(near->memory, seed_, 0);
    test::put_pattern(far->memory, seed_ + 1, 0);
  }
  /// Returns the seed of the near side's pattern.
  std::uint64_t near_seed() const noexcept { return seed_; }
  /// Expects each byte of that side as it was filled but for what `expected` says.
  void expect_memory(const VerbsSide& side, std::span<const test::Expected> expected = {}) const {
    EXPECT_EQ(
        test::first_difference(side.memory, &side == near.get() ? seed_ : seed_ + 1, 0, expected),
        "");
  }
  /// Expects that the block was written from the near side to the far one, alone.
  void expect_written(const Block& b) const {
    const test::Expected expected[] = {{b.remote_offset, seed_, b.local_offset, b.bytes}};
    expect_memory(*far, expected);
  }

  static Result<Posted> post(VerbsSide& side, std::uint64_t cookie, Op op, const Block& block) {
    return post(side, cookie, op, std::span(&block, 1), *side.remote);
  }
  static Result<Posted> post(VerbsSide& side, std::uint64_t cookie, Op op,
                             std::span<const Block> blocks, const Mapping& remote) {
    return side.endpoint->post(
        {.op = op, .local = &side.region(), .remote = &remote, .shape = blocks, .cookie = cookie});
  }
  void deliver(VerbsSide& from, VerbsSide& to) {
    while (!from.channel.sent.empty() && !to.stopped && !from.stopped) {
      const auto message = std::move(from.channel.sent.front());
      from.channel.sent.pop_front();
      const Status status = to.endpoint->on_message(message.op, message.bytes, {});
      EXPECT_TRUE(status.ok()) << status.to_string();
    }
  }
  void progress() {
    deliver(*near, *far);
    deliver(*far, *near);
    for (VerbsSide* side : {near.get(), far.get()})
      if (!side->stopped) side->endpoint->progress(*side);
  }
  /// Makes progress until `done` returns true; returns false if it does not for 20 s.
  template <class Done>
  bool until(const Done& done) {
    const auto limit = base::Deadline::in(20s);
    while (!done()) {
      if (limit.passed()) return false;
      progress();
    }
    return true;
  }
  /// Makes progress for a while.
  void linger() {
    const auto limit = base::Deadline::in(20ms);
    while (!limit.passed()) progress();
  }
  Status end_of(VerbsSide& side, std::uint64_t cookie) {
    if (!until([&] { return side.ends.contains(cookie); }))
      return {Code::timed_out, Scope::request, "it has not ended"};
    return side.ends.at(cookie);
  }
  /// Writes everything once, and waits for the links that it did not need.
  void warm_up() {
    ASSERT_TRUE(post(*near, 1, Op::write, {0, 0, VerbsSide::kBytes}).ok());
    const Status end = end_of(*near, 1);
    ASSERT_TRUE(end.ok()) << end.to_string();
    ASSERT_TRUE(until([&] { return at_rest(); }));
    near->ends.clear();
    fill(2);
  }
  /// Returns whether no side changes its queue pairs or has anything to say, so all links are up.
  bool at_rest() const {
    return std::ranges::all_of(std::initializer_list<const VerbsSide*>{near.get(), far.get()},
                               [](const VerbsSide* side) {
                                 return side->channel.sent.empty() &&
                                        side->endpoint->poll_hint().when == PollHint::When::idle;
                               });
  }
  void hold(bool held) {
    for (unsigned device : {0u, 1u}) fake.hold(device, held ? 1 : 0);
  }

  base::FakeClock clock;
  test::FakeVerbs fake;
  std::unique_ptr<VerbsSide> near, far;

 private:
  Library library_;
  std::uint64_t seed_ = 0;
};

}  // namespace linkspan::transport::verbs
