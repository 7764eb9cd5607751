// Tests two VerbsEndpoints of one process, over network cards as bad as the test wants them.
#include <gtest/gtest.h>

#include <pthread.h>

#include <thread>

#include "base/schema/verbs_generated.h"
#include "tests/support/no_memory.hpp"
#include "tests/unit/verbs_fixture.hpp"

namespace linkspan::transport::verbs {
namespace verbs_endpoint_test {

constexpr std::uint64_t kBytes = VerbsSide::kBytes;
constexpr Block kBlock{4097, 70001, 300000}, kOther{500000, 900000, 5000};

TEST_F(VerbsPair, WritesAndReadsBothWaysAtOnce) {
  connect();
  ASSERT_TRUE(post(*near, 1, Op::write, {0, 0, 1000}).ok());
  ASSERT_TRUE(post(*near, 2, Op::read, {2000, 2000, 1000}).ok());
  ASSERT_TRUE(post(*far, 3, Op::write, {4000, 4000, 1000}).ok());
  ASSERT_TRUE(post(*far, 4, Op::read, {6000, 6000, 1000}).ok());
  for (const std::uint64_t cookie : {1u, 2u})
    EXPECT_EQ(end_of(*near, cookie).to_string(), "ok") << cookie;
  for (const std::uint64_t cookie : {3u, 4u})
    EXPECT_EQ(end_of(*far, cookie).to_string(), "ok") << cookie;
  const test::Expected at_near[] = {{2000, 3, 2000, 1000}, {4000, 3, 4000, 1000}};
  const test::Expected at_far[] = {{0, 2, 0, 1000}, {6000, 2, 6000, 1000}};
  expect_memory(*near, at_near);
  expect_memory(*far, at_far);
}

TEST_F(VerbsPair, GoesByTheNearestDevice_AndByOthersWhenThatIsGone) {
  connect({.request = 65536}, kBytes, [](const VerbsDevice& device, const cuda::Device*) {
    return device.name() == "fake1" ? std::size_t{5} : std::size_t{4};
  });
  warm_up();
  const auto how = near->endpoint->explain(Op::write, near->region(), *near->remote, {});
  EXPECT_EQ(how.reason, "RDMA by fake1 port 1 here to fake1 port 1 there");
  fake.hold(0, 1);  // nothing goes by the other one
  ASSERT_TRUE(post(*near, 2, Op::write, {0, 0, kBytes}).ok());
  EXPECT_EQ(end_of(*near, 2).to_string(), "ok");
  expect_written({0, 0, kBytes});
  fake.hold(0, 0);
  fill(3);
  fake.set_port(1, 0);
  ASSERT_TRUE(post(*near, 3, Op::write, {0, 0, kBytes}).ok());
  ASSERT_TRUE(until([&] {
    clock.advance(1ms);
    return near->ends.contains(3);
  }));
  EXPECT_EQ(near->ends.at(3).to_string(), "ok");
  expect_written({0, 0, kBytes});
}

TEST_F(VerbsPair, SharesALargeBlockAmongTheRails) {
  connect({.request = 65536});
  warm_up();
  fake.reset();
  ASSERT_TRUE(post(*near, 2, Op::write, {0, 0, kBytes}).ok());
  EXPECT_EQ(end_of(*near, 2).to_string(), "ok");
  EXPECT_EQ(fake.count("work_requests"), kBytes / 65536);
  expect_written({0, 0, kBytes});
}

TEST_F(VerbsPair, RingsOneDoorbellForABatchThatHasRoom) {
  connect();
  warm_up();
  fake.reset();
  std::vector<Block> blocks;
  for (std::uint64_t i = 0; i < 100; ++i) blocks.push_back({i * 4096, (99 - i) * 8192, 4096});
  ASSERT_TRUE(post(*near, 2, Op::write, blocks, *near->remote).ok());
  EXPECT_EQ(fake.count("doorbells"), 1u);
  EXPECT_EQ(fake.count("work_requests"), 100u);
  EXPECT_EQ(end_of(*near, 2).to_string(), "ok");
  EXPECT_EQ(fake.count("completions"), 1u);
}

TEST_F(VerbsPair, SendsInPartsWhatTheQueueHasNoRoomFor) {
  connect({.depth = 3, .chain = 2, .runs = 2, .request = 4096, .outstanding = 5000});
  std::vector<Block> blocks;
  for (std::uint64_t i = 0; i < 60; ++i) blocks.push_back({i * 10001, i * 10007, 9999});
  ASSERT_TRUE(post(*near, 1, Op::write, blocks, *near->remote).ok());
  EXPECT_EQ(end_of(*near, 1).to_string(), "ok");
  std::vector<test::Expected> expected;
  for (const Block& b : blocks) expected.push_back({b.remote_offset, 2, b.local_offset, b.bytes});
  expect_memory(*far, expected);
}

TEST_F(VerbsPair, GoesOn_WhenThePostIsRefusedInPart) {
  connect({.depth = 16, .chain = 8, .request = 4096});
  warm_up();
  for (int nth = 1; nth < 40; ++nth) {
    fill(static_cast<std::uint64_t>(nth) + 2);
    fake.set("fail_post", nth);
    const std::uint64_t cookie = static_cast<std::uint64_t>(nth) + 1;
    ASSERT_TRUE(post(*near, cookie, Op::write, kBlock).ok()) << nth;
    ASSERT_EQ(end_of(*near, cookie).to_string(), "ok") << nth;
    expect_written(kBlock);
  }
}

TEST_F(VerbsPair, SendsAgain_WhenRetriesAreExceeded) {
  connect({.request = 4096});
  warm_up();
  for (int nth = 1; nth < 70; nth += 9) {
    fill(static_cast<std::uint64_t>(nth) + 2);
    fake.set("fail_send", nth);
    const std::uint64_t cookie = static_cast<std::uint64_t>(nth) + 1;
    ASSERT_TRUE(post(*near, cookie, nth % 2 ? Op::write : Op::read, kBlock).ok()) << nth;
    ASSERT_EQ(end_of(*near, cookie).to_string(), "ok") << nth;
    if (nth % 2) expect_written(kBlock);
  }
}

TEST_F(VerbsPair, GoesOnByTheOtherRail_WhenADeviceIsLost) {
  for (const int silent : {0, 1}) {
    connect({.request = 4096});
    warm_up();
    fake.set("lost_silent", silent);
    fake.set("lose_device", 20);
    ASSERT_TRUE(post(*near, 2, Op::write, kBlock).ok());
    // The device's event is looked for each 10 ms of the Endpoint's clock.
    ASSERT_TRUE(until([&] {
      clock.advance(1ms);
      return near->ends.contains(2);
    }));
    EXPECT_EQ(near->ends.at(2).to_string(), "ok");
    expect_written(kBlock);
    TearDown();
  }
}

TEST_F(VerbsPair, RegistersWithTheDevicesThatWork) {
  connect();
  warm_up();
  fake.lose(0);
  std::vector<std::byte> memory(8192);
  test::put_pattern(memory, 9, 0);
  memory::Registry registry(kNear, nullptr);
  // Serials of the sides' own registries are in use.
  std::shared_ptr<const memory::Registration> added;
  for (int i = 0; i < 2; ++i)
    added = take(registry.add(memory.data(), memory.size(), {true, true}, false));
  must(near->transport->publish(added->region()).status());
  const Block block{5, 7, 8000};
  ASSERT_TRUE(near->endpoint
                  ->post({.op = Op::write,
                          .local = &added->region(),
                          .remote = near->remote.get(),
                          .shape = std::span(&block, 1),
                          .cookie = 2})
                  .ok());
  ASSERT_TRUE(until([&] {
    clock.advance(1ms);
    return near->ends.contains(2);
  }));
  EXPECT_EQ(near->ends.at(2).to_string(), "ok");
  const test::Expected expected[] = {{7, 9, 5, 8000}};
  expect_memory(*far, expected);
  EXPECT_TRUE(near->transport->retract(added->region(), false).ok());
}

TEST_F(VerbsPair, EndsTransfers_WhenAllDevicesAreLost) {
  connect();
  warm_up();
  hold(true);
  ASSERT_TRUE(post(*near, 2, Op::write, kBlock).ok());
  for (unsigned device : {0u, 1u}) fake.lose(device);
  hold(false);
  ASSERT_TRUE(until([&] {
    clock.advance(10ms);
    return near->ends.contains(2);
  }));
  EXPECT_EQ(near->ends.at(2).code(), Code::unreachable) << near->ends.at(2).to_string();
  EXPECT_EQ(post(*near, 3, Op::write, kBlock).status().code(), Code::unreachable);
  const Explanation why = near->endpoint->explain(Op::write, near->region(), *near->remote, {});
  EXPECT_EQ(why.path, "");
  EXPECT_NE(why.reason, "");
}

TEST_F(VerbsPair, GoesOn_WhenAPortComesUpAgainOrItsAddressChanges) {
  connect();
  warm_up();
  for (unsigned device : {0u, 1u}) fake.set_port(device, 0);
  ASSERT_TRUE(post(*near, 2, Op::write, kBlock).ok());
  for (int i = 0; i < 10; ++i) {
    clock.advance(10ms);
    progress();
  }
  for (unsigned device : {0u, 1u}) fake.set_port(device, 1);
  ASSERT_TRUE(until([&] {
    clock.advance(10ms);
    return near->ends.contains(2);
  }));
  EXPECT_TRUE(near->ends.at(2).ok() || near->ends.at(2).code() == Code::unreachable)
      << near->ends.at(2).to_string();
  fill(3);
  for (unsigned device : {0u, 1u}) fake.change_gid(device);
  for (std::uint64_t cookie = 3; cookie < 6; ++cookie) {
    clock.advance(6s);
    ASSERT_TRUE(post(*near, cookie, Op::write, kBlock).ok());
    ASSERT_TRUE(until([&] {
      clock.advance(10ms);
      return near->ends.contains(cookie);
    }));
    EXPECT_EQ(near->ends.at(cookie).to_string(), "ok");
  }
  expect_written(kBlock);
}

TEST_F(VerbsPair, FencesACanceledBatch_WhenTheDeviceIsSilent) {
  connect();
  warm_up();
  hold(true);
  ASSERT_TRUE(post(*near, 2, Op::write, kBlock).ok());
  ASSERT_TRUE(post(*near, 3, Op::write, kOther).ok());
  ASSERT_TRUE(post(*near, 4, Op::read, kOther).ok());
  progress();
  near->endpoint->cancel(2);
  near->endpoint->cancel(4);
  linger();
  EXPECT_TRUE(near->ends.empty()) << "the requests are still with the device";
  clock.advance(VerbsEndpoint::kCancelFences + 200ms);
  EXPECT_EQ(end_of(*near, 2).code(), Code::canceled);
  EXPECT_EQ(end_of(*near, 4).code(), Code::canceled);
  EXPECT_FALSE(near->ends.contains(3));
  fill(3);
  hold(false);
  EXPECT_EQ(end_of(*near, 3).to_string(), "ok");
  linger();
  expect_written(kOther);
  expect_memory(*near);
}

TEST_F(VerbsPair, GivesThePeerUp_WhenItDoesNotAnswerToTheFence) {
  connect();
  warm_up();
  hold(true);
  ASSERT_TRUE(post(*near, 2, Op::write, kBlock).ok());
  far->stopped = true;
  near->endpoint->cancel(2);
  clock.advance(VerbsEndpoint::kCancelEnds - 1s);
  linger();
  EXPECT_TRUE(near->channel.given_up.ok());
  EXPECT_TRUE(near->ends.empty()) << "what the peer's device may still write is not quiet";
  clock.advance(1s + 200ms);
  linger();
  EXPECT_EQ(near->channel.given_up.code(), Code::disconnected);
  near->endpoint->peer_terminated();
  EXPECT_EQ(end_of(*near, 2).code(), Code::disconnected);
  ASSERT_TRUE(until([&] { return near->endpoint->drained(); }));
  hold(false);
  linger();
  expect_memory(*far);
}

TEST_F(VerbsPair, NothingLandsOnceItHasDrained_WhenThePeerIsGone) {
  connect();
  warm_up();
  hold(true);
  ASSERT_TRUE(post(*near, 2, Op::read, kBlock).ok());
  ASSERT_TRUE(post(*far, 3, Op::write, kOther).ok());
  progress();
  near->endpoint->peer_terminated();
  EXPECT_FALSE(near->endpoint->drained());
  EXPECT_NE(near->endpoint->poll_hint().when, PollHint::When::idle);
  ASSERT_TRUE(until([&] { return near->endpoint->drained() && near->ends.contains(2); }));
  EXPECT_EQ(near->ends.at(2).code(), Code::disconnected);
  EXPECT_EQ(post(*near, 4, Op::read, kBlock).status().code(), Code::disconnected);
  hold(false);
  linger();
  expect_memory(*near);
  EXPECT_EQ(near->endpoint->poll_hint().when, PollHint::When::idle);
}

TEST_F(VerbsPair, RetractWaitsUntilThePeerHasReturnedTheRegion) {
  connect();
  warm_up();
  hold(true);
  ASSERT_TRUE(post(*near, 2, Op::write, kBlock).ok());
  EXPECT_EQ(far->transport->retract(far->region(), false).code(), Code::busy);
  EXPECT_EQ(far->channel.requested, 1);
  linger();
  EXPECT_EQ(far->transport->retract(far->region(), false).code(), Code::busy);
  EXPECT_EQ(post(*near, 3, Op::write, kBlock).status().code(), Code::unreachable);
  hold(false);
  EXPECT_EQ(end_of(*near, 2).to_string(), "ok");
  EXPECT_TRUE(until([&] { return far->transport->retract(far->region(), false).ok(); }));
  expect_written(kBlock);
  ASSERT_TRUE(post(*near, 4, Op::write, kBlock).ok());
  EXPECT_EQ(end_of(*near, 4).code(), Code::unreachable);
  EXPECT_FALSE(near->remote->alive());
}

TEST_F(VerbsPair, TransfersOnAnInvalidatedRegionEndEarly) {
  connect({.depth = 4, .request = 4096});
  warm_up();
  hold(true);
  ASSERT_TRUE(post(*near, 2, Op::write, kBlock).ok());
  EXPECT_EQ(far->transport->retract(far->region(), true).code(), Code::busy);
  linger();
  hold(false);
  EXPECT_EQ(end_of(*near, 2).code(), Code::unreachable);
  EXPECT_TRUE(until([&] { return far->transport->retract(far->region(), true).ok(); }));
}

TEST_F(VerbsPair, ARegionThatThePeerKeepsIsTakenAwayAtTheBound) {
  connect();
  warm_up();
  near->stopped = true;
  EXPECT_EQ(far->transport->retract(far->region(), false).code(), Code::busy);
  linger();
  clock.advance(ServedAccess::kMaxReturn + 200ms);
  linger();
  EXPECT_EQ(far->transport->retract(far->region(), false).to_string(), "ok");
  fill(3);
  // The near side has not heard of it. Its request fails, and its queue pair with it.
  ASSERT_TRUE(post(*near, 2, Op::write, kBlock).ok());
  EXPECT_TRUE(until([&] {
    near->endpoint->progress(*near);
    return !near->remote->alive();
  }));
  near->stopped = false;
  EXPECT_EQ(end_of(*near, 2).code(), Code::unreachable);
  EXPECT_FALSE(near->remote->alive());
  linger();
  expect_memory(*far);
}

TEST_F(VerbsPair, RefusesAPeerThatAsksAndReadsNoAnswer) {
  connect();
  warm_up();
  far->channel.full = true;
  flatbuffers::FlatBufferBuilder out;
  out.Finish(schema::CreateVerbsAccess(out, 9999, out.CreateVector(std::vector<std::uint8_t>(16))));
  const auto message = finished(out);
  std::size_t taken = 0;
  Status end;
  while (end.ok() && ++taken < 100'000)
    end = far->endpoint->on_message(static_cast<std::uint16_t>(VerbsMessage::access), message, {});
  EXPECT_EQ(end.code(), Code::corrupt) << end.to_string();
  EXPECT_EQ(taken, MessageQueue::kMaxAnswers + 2);
  far->channel.full = false;
  far->channel.sent.clear();
}

TEST_F(VerbsPair, RefusesWhatAHostilePeerSends) {
  connect();
  warm_up();
  const auto send = [&](VerbsMessage type, const flatbuffers::FlatBufferBuilder& out) {
    return far->endpoint->on_message(static_cast<std::uint16_t>(type), finished(out), {}).code();
  };
  const auto open = [&](std::uint64_t epoch, std::uint32_t from, std::uint32_t to,
                        std::uint32_t queue_pair, std::size_t gid_bytes) {
    flatbuffers::FlatBufferBuilder out;
    const auto gid = out.CreateVector(std::vector<std::uint8_t>(gid_bytes, 1));
    out.Finish(schema::CreateVerbsOpen(out, epoch, from, to, queue_pair, 1, gid, 0, 1));
    return send(VerbsMessage::open, out);
  };
  EXPECT_EQ(open(1, 0, 0, 5, 16), Code::corrupt) << "an old epoch";
  EXPECT_EQ(open(9, 2, 0, 5, 16), Code::corrupt) << "an unknown rail there";
  EXPECT_EQ(open(9, 0, 2, 5, 16), Code::corrupt) << "an unknown rail here";
  EXPECT_EQ(open(9, 0, 0, 1u << 24, 16), Code::corrupt);
  EXPECT_EQ(open(9, 0, 0, 5, 15), Code::corrupt);
  {
    flatbuffers::FlatBufferBuilder out;
    const auto what = out.CreateString("");
    const auto rkeys = out.CreateVector(std::vector<std::uint64_t>{1, 2});
    out.Finish(schema::CreateVerbsGranted(out, 99, 0, rkeys, false, 0, what));
    EXPECT_EQ(send(VerbsMessage::granted, out), Code::corrupt) << "it was not asked for";
  }
  {
    flatbuffers::FlatBufferBuilder out;
    const auto what = out.CreateString("");
    const auto gid = out.CreateVector(std::vector<std::uint8_t>(16, 1));
    out.Finish(schema::CreateVerbsOpened(out, 7, 0, 3, gid, 0, 1, 0, what));
    EXPECT_EQ(send(VerbsMessage::opened, out), Code::corrupt) << "it was not asked for";
  }
  {  // a wrong token
    flatbuffers::FlatBufferBuilder out;
    const WireKey key = take(decode_key(far->key));
    const auto token = out.CreateVector(std::vector<std::uint8_t>(16, 1));
    out.Finish(schema::CreateVerbsAccess(out, key.id.serial, token));
    far->channel.sent.clear();
    EXPECT_EQ(send(VerbsMessage::access, out), Code::ok);
    const auto* answer = verified<schema::VerbsGranted>(far->channel.sent.back().bytes);
    ASSERT_NE(answer, nullptr);
    EXPECT_EQ(answer->code(), static_cast<std::uint8_t>(Code::unreachable));
    EXPECT_EQ(answer->rkeys()->size(), 0u);
    far->channel.sent.clear();
  }
  ASSERT_TRUE(post(*near, 2, Op::write, kBlock).ok());
  EXPECT_EQ(end_of(*near, 2).to_string(), "ok") << "and goes on";
}

TEST_F(VerbsPair, SaysWhatHelps_WhenMemoryCannotBeRegistered) {
  connect();
  fake.set("fail_registration", 1);
  memory::Registry registry(kNear, nullptr);
  std::vector<std::byte> memory(8192);
  const auto added = take(registry.add(memory.data(), memory.size(), {true, true}, false));
  const auto key = near->transport->publish(added->region());
  EXPECT_FALSE(key.ok());
  EXPECT_NE(key.status().what().find("ibv_reg_mr"), std::string::npos) << key.status().what();
}

/// What was posted and ended once leaves its memory for what comes.
TEST_F(VerbsPair, AllocatesNothing_OnceThereWereBatchesAsLarge) {
  connect();
  warm_up();
  std::vector<std::uint32_t> from, to;
  for (std::uint32_t i = 0; i < 1000; ++i) {
    from.push_back(i * 7 % 1000);
    to.push_back(999 - i);
  }
  const Batch batch{.op = Op::write,
                    .local = &near->region(),
                    .remote = near->remote.get(),
                    .shape = Pages{1000, 24, 8, from, to},
                    .checked = true,
                    .cookie = 1};
  struct OneEnd final : CompletionSink {
    void complete(Completion&& end) override {
      ok = end.status.ok();
      ++ends;
    }
    bool ok = false;
    int ends = 0;
  };
  for (const unsigned every : {0u, 1u}) {  // the second time without memory
    OneEnd sink;
    bool posted = false;
    std::jthread([&] {
      ::pthread_setname_np(::pthread_self(), "ls-test");
      const test::NoMemory none(every != 0 ? "ls-test" : "none", 1);
      posted = near->endpoint->post(batch).ok();
      const auto limit = base::Deadline::in(20s);
      while (posted && sink.ends == 0 && !limit.passed()) near->endpoint->progress(sink);
    }).join();
    EXPECT_TRUE(posted && sink.ok) << every;
    EXPECT_EQ(test::NoMemory::failed(), 0u);
  }
}

/// Each step is repeated by the next progress(), or ends in an error that the caller gets.
TEST_F(VerbsPair, LosesNoBatch_WhenAllocationsFail) {
  connect();
  constexpr std::uint64_t kPart = 5000, kParts = kBytes / kPart;
  std::uint64_t cookie = 0;
  std::vector<std::uint64_t> posted;
  posted.reserve(10000);
  test::fail_each_allocation(
      [&] {
        ++cookie;
        const std::uint64_t at = cookie % kParts * kPart;
        if (post(*near, cookie, cookie % 2 ? Op::write : Op::read, {at, at, kPart}).ok())
          posted.push_back(cookie);
        near->endpoint->progress(*near);
      },
      [&](bool) { linger(); });
  for (const std::uint64_t each : posted) EXPECT_EQ(end_of(*near, each).to_string(), "ok") << each;
  EXPECT_GT(posted.size(), 0u);
}

/// Calls act() in a thread in which each nth allocation fails. Returns whether one did.
template <class Act>
bool without_memory(unsigned nth, const Act& act) {
  std::jthread([&] {
    ::pthread_setname_np(::pthread_self(), "ls-test");
    const test::NoMemory none("ls-test", nth);
    try {
      act();
    } catch (const std::bad_alloc&) {  // as of an Endpoint's progress(), which is called again
    }
  }).join();
  return test::NoMemory::failed() != 0;
}

/// Another transport shall take it over, so the completion has what is unfinished.
TEST_F(VerbsPair, EndsABatchWhoseDevicesAreLost_WhenAllocationsFail) {
  constexpr int kLooks = 100;
  struct OneEnd final : CompletionSink {
    void complete(Completion&& end) override { came = end.cookie == 2; }
    bool came = false;
  };
  bool failed = true;
  for (unsigned nth = 1; failed && nth < 100; ++nth) {
    failed = false;
    connect();
    warm_up();
    hold(true);
    ASSERT_TRUE(post(*near, 2, Op::write, {4097, 70001, 300000}).ok());
    for (const unsigned device : {0u, 1u}) fake.lose(device);
    hold(false);
    OneEnd end;
    const auto limit = base::Deadline::in(20s);
    for (int look = 0; !end.came && !limit.passed(); ++look) {
      clock.advance(10ms);
      deliver(*near, *far);
      deliver(*far, *near);
      if (look < kLooks)
        failed |= without_memory(nth, [&] { near->endpoint->progress(end); });
      else
        near->endpoint->progress(end);
      far->endpoint->progress(*far);
    }
    EXPECT_TRUE(end.came) << nth;
    TearDown();
  }
}

TEST_F(VerbsPair, AsksForWhatIsRetracted_WhenAllocationsFail) {
  bool failed = true;
  for (unsigned nth = 1; failed; ++nth) {
    connect();
    warm_up();
    EXPECT_EQ(far->transport->retract(far->region(), false).code(), Code::busy);
    failed = without_memory(nth, [&] { far->endpoint->progress(*far); });
    EXPECT_TRUE(until([&] { return far->transport->retract(far->region(), false).ok(); })) << nth;
    TearDown();
  }
}

TEST_F(VerbsPair, GivesThePeerUp_WhenThereWasNoMemoryForThatAtFirst) {
  connect();
  warm_up();
  hold(true);
  ASSERT_TRUE(post(*near, 2, Op::write, {4097, 70001, 300000}).ok());
  far->stopped = true;
  near->endpoint->cancel(2);
  near->channel.no_memory = true;
  int thrown = 0;
  const auto limit = base::Deadline::in(20s);
  while (near->channel.given_up.ok() && !limit.passed()) {
    clock.advance(10ms);
    try {
      near->endpoint->progress(*near);
    } catch (const std::bad_alloc&) {
      ++thrown;
    }
  }
  EXPECT_EQ(near->channel.given_up.code(), Code::disconnected);
  EXPECT_EQ(thrown, 1);
  near->endpoint->peer_terminated();
  ASSERT_TRUE(until([&] { return near->endpoint->drained(); }));
}

}  // namespace verbs_endpoint_test
}  // namespace linkspan::transport::verbs
