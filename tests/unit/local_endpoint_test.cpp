// Tests a LocalEndpoint whose peer breaks the rules: requests are checked where the memory is,
// whatever the peer's own library would have refused.
#include <fcntl.h>

#include <signal.h>
#include <sys/wait.h>

#include <future>

#include "tests/support/local_endpoint.hpp"
#include "tests/support/no_memory.hpp"
#include "tests/support/process.hpp"
#include "tests/support/take.hpp"

namespace linkspan::transport::local {
namespace local_endpoint_test {

TEST_F(LocalEndpointTest, ExecutesWhatIsPermittedAndNothingElse) {
  const std::uint64_t readable = us_.publish(ours_, {.read = true});
  const std::uint64_t theirs = offer();
  ASSERT_TRUE(execute(true, theirs, readable, {0, 0, 64}).ok());
  EXPECT_EQ(answer(), Code::permission_denied);
  EXPECT_EQ(ours_, std::vector<std::byte>(kBytes, std::byte{1}));
  ASSERT_TRUE(execute(false, theirs, readable, {5, 0, 64}).ok());
  EXPECT_EQ(answer(), Code::ok);
  EXPECT_EQ(theirs_[4], std::byte{2});
  EXPECT_EQ(theirs_[5], std::byte{1});
  EXPECT_EQ(theirs_[68], std::byte{1});
  EXPECT_EQ(theirs_[69], std::byte{2});
}

/// The Engine is closing: it says goodbye soon, and nothing may be in flight by then.
TEST_F(LocalEndpointTest, BeginsNothingWhenItServesNoMore) {
  const std::uint64_t readable = us_.publish(ours_, {.read = true});
  const std::uint64_t theirs = offer();
  endpoint_->stop_serving();
  ASSERT_TRUE(execute(false, theirs, readable, {0, 0, 64}).ok());
  EXPECT_EQ(answer(), Code::disconnected);
  EXPECT_EQ(theirs_, std::vector<std::byte>(kBytes, std::byte{2}));
}

TEST_F(LocalEndpointTest, RefusesBlocksOutsideEitherRegionAlsoWhenTheSumOverflows) {
  const std::uint64_t writable = us_.publish(ours_, {.read = true, .write = true});
  const std::uint64_t theirs = offer();
  for (const schema::WireBlock block :
       {schema::WireBlock{0, kBytes, 1}, schema::WireBlock{kBytes, 0, 1},
        schema::WireBlock{0, ~0ull - 3, 8}, schema::WireBlock{~0ull - 3, 0, 8},
        schema::WireBlock{8, 8, ~0ull - 7}}) {
    ASSERT_TRUE(execute(true, theirs, writable, block).ok());
    EXPECT_EQ(answer(), Code::invalid_argument);
  }
  EXPECT_EQ(ours_, std::vector<std::byte>(kBytes, std::byte{1}));
}

TEST_F(LocalEndpointTest, ExecutesPages_AndRefusesThoseThatLeaveARegion) {
  const std::uint64_t writable = us_.publish(ours_, {.read = true, .write = true});
  const std::uint64_t theirs = offer();
  const std::uint32_t last = (kBytes - 5) / 16 - 1, most = ~std::uint32_t{0};
  ASSERT_TRUE(execute(theirs, writable, 16, {0, last}, {last, 1}).ok());
  EXPECT_EQ(answer(), Code::ok);
  std::vector<std::byte> due(kBytes, std::byte{1});
  for (const std::size_t begin : {std::size_t{3} + last * 16, std::size_t{3 + 16}})
    std::fill_n(due.begin() + static_cast<std::ptrdiff_t>(begin), 16, std::byte{2});
  EXPECT_EQ(ours_, due);
  ASSERT_TRUE(execute(theirs, writable, 0, {0}, {0}).ok());
  EXPECT_EQ(answer(), Code::ok) << "pages without bytes";
  for (const std::uint32_t index : {last + 1, most}) {
    ASSERT_TRUE(execute(theirs, writable, 16, {0, index}, {0, 0}).ok());
    EXPECT_EQ(answer(), Code::invalid_argument);
    ASSERT_TRUE(execute(theirs, writable, 16, {0, 0}, {0, index}).ok());
    EXPECT_EQ(answer(), Code::invalid_argument);
  }
  ASSERT_TRUE(execute(theirs, writable, ~0ull, {1}, {1}).ok());  // the sum overflows
  EXPECT_EQ(answer(), Code::invalid_argument);
  EXPECT_EQ(ours_, due);
}

TEST_F(LocalEndpointTest, ARequestIsOfBlocksOrOfAsManyPagesOnBothSides) {
  const std::uint64_t writable = us_.publish(ours_, {.read = true, .write = true});
  const std::uint64_t theirs = offer();
  EXPECT_EQ(execute(theirs, writable, 16, {0, 1}, {0}).code(), Code::corrupt);
  const Capabilities limits = us_.transport->capabilities();
  const std::vector<std::uint32_t> pages(limits.max_batch_pages + 1);
  EXPECT_EQ(execute(theirs, writable, 1, pages, pages).code(), Code::corrupt);
  const std::vector<schema::WireBlock> blocks(limits.max_batch_pages + 1);
  flatbuffers::FlatBufferBuilder many, nothing;
  const auto list = many.CreateVectorOfStructs(blocks);
  many.Finish(schema::CreateExecute(many, 1, true, theirs, writable, list));
  EXPECT_EQ(say(LocalMessage::execute, finished(many)).code(), Code::corrupt);
  nothing.Finish(schema::CreateExecute(nothing, 1, true, theirs, writable));
  EXPECT_EQ(say(LocalMessage::execute, finished(nothing)).code(), Code::corrupt);
}

TEST_F(LocalEndpointTest, RefusesRegionsThatAreNotThere) {
  const std::uint64_t writable = us_.publish(ours_, {.read = true, .write = true});
  ASSERT_TRUE(execute(true, 1, writable, {0, 0, 1}).ok());  // was not offered
  EXPECT_EQ(answer(), Code::unreachable);
  const std::uint64_t theirs = offer();
  ASSERT_TRUE(execute(true, theirs, writable + 1, {0, 0, 1}).ok());
  EXPECT_EQ(answer(), Code::unreachable);
}

TEST_F(LocalEndpointTest, WhoOnlySaysThatItIsThisProcessDoesNotReachOurAddresses) {
  channel_.pid = ::getpid() + 1;  // what the kernel says; the key names our own process
  const std::uint64_t writable = us_.publish(ours_, {.read = true, .write = true});
  const std::uint64_t theirs = offer();
  ASSERT_TRUE(execute(false, theirs, writable, {0, 0, 64}).ok());
  EXPECT_EQ(answer(), Code::unsupported);
  EXPECT_EQ(theirs_, std::vector<std::byte>(kBytes, std::byte{2}));
}

TEST_F(LocalEndpointTest, ANumberThatIsAnotherProcesssIsNotCopiedFrom) {
  struct Stranger {
    const pid_t pid = ::fork();
    ~Stranger() {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
  };
  const Stranger stranger;
  if (stranger.pid == 0) {
    ::pause();
    ::_exit(0);
  }
  const std::uint64_t ours = us_.publish(ours_, {.read = true, .write = true});
  peer_.publish(theirs_, {.read = true, .write = true});
  const auto soon = base::Deadline::after(base::Clock::steady(), 10s);
  auto mapping = us_.transport->import_key({peer_.key.bytes, peer_.fds, kPeer, false}, soon);
  ASSERT_TRUE(mapping.ok());
  LocalAddress address = *decode_address(peer_.transport->address());
  ++address.process.nonce;  // not this process
  channel_.pid = stranger.pid;
  const base::Fd pidfd = *base::open_pidfd(stranger.pid);
  channel_.pidfd = pidfd.get();
  const memory::Region& region = us_.registry.all().front()->region();
  ASSERT_EQ(region.facts().id.serial, ours);
  // The secret of the process that speaks, or another one, at an address that both have.
  for (const bool same : {true, false}) {
    if (!same) address.proof[0] ^= std::byte{1};
    auto endpoint = us_.transport->connect(encode(address), channel_, soon);
    ASSERT_TRUE(endpoint.ok());
    const Block block{0, 0, 64};
    ASSERT_TRUE((*endpoint)
                    ->post({.op = Op::read,
                            .local = &region,
                            .remote = mapping->get(),
                            .shape = std::span(&block, 1)})
                    .ok());
    const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
    while (ends_.all.empty() && !limit.passed()) (*endpoint)->progress(ends_);
    ASSERT_EQ(ends_.all.size(), 1u);
    EXPECT_EQ(ends_.all.front().status.code(), same ? Code::ok : Code::permission_denied);
    EXPECT_EQ(ours_[0], same ? std::byte{2} : std::byte{1});
    ends_.all.clear();
    ours_.assign(kBytes, std::byte{1});
    const Explanation way = (*endpoint)->explain(Op::read, region, **mapping, {1, 64});
    EXPECT_EQ(way.path, same ? "kernel+cross_process" : "bounce+cpu_threads") << way.reason;
    if (!same) {
      EXPECT_NE(way.refused.at(1).reason.find("another process"), std::string::npos);
    }
  }
  channel_.same_user = false;
  address.proof[0] ^= std::byte{1};
  auto endpoint = us_.transport->connect(encode(address), channel_, soon);
  ASSERT_TRUE(endpoint.ok());
  EXPECT_EQ((*endpoint)->explain(Op::read, region, **mapping, {1, 64}).path, "bounce+cpu_threads");
}

TEST_F(LocalEndpointTest, IsMadeAtOnce_WhenThePeersMemoryNeverAnswers) {
  const auto silent = test::take(test::Child::spawn("silent_memory"));
  const auto at = test::take(silent->line().call({{"do", "it"}})).value.get<std::uint64_t>();
  if (at == 0) GTEST_SKIP() << "needs root, to handle faults of system calls";
  LocalAddress address = *decode_address(peer_.transport->address());
  ++address.process.nonce;  // not this process
  address.proof_address = at;
  channel_.pid = silent->pid();
  channel_.pidfd = silent->pidfd();
  auto made = std::async(std::launch::async, [&] {
    return us_.transport->connect(encode(address), channel_,
                                  base::Deadline::after(base::Clock::steady(), 10s));
  });
  EXPECT_EQ(made.wait_for(10s), std::future_status::ready) << "it stands at the peer's memory";
  silent->kill();
  EXPECT_TRUE(made.get().ok());
}

TEST_F(LocalEndpointTest, KeysOfAnotherOwnerAreNotTakenFromThisPeer) {
  Half other{kPeer + 1};
  std::vector<std::byte> memory(kBytes);
  other.publish(memory, {.read = true, .write = true});
  const auto soon = base::Deadline::after(base::Clock::steady(), 10s);
  auto taken = us_.transport->import_key({other.key.bytes, other.fds, kPeer, true}, soon);
  EXPECT_EQ(taken.status().code(), Code::corrupt);
  flatbuffers::FlatBufferBuilder out;
  const auto key = schema::vector_of(out, other.key.bytes);
  out.Finish(schema::CreateOffer(out, key));
  EXPECT_EQ(say(LocalMessage::offer, finished(out), other.fds).code(), Code::corrupt);
  EXPECT_EQ(us_.transport->connect(other.transport->address(), channel_, soon).status().code(),
            Code::corrupt);
}

TEST_F(LocalEndpointTest, OffersAreOnceEachAndBoundedWhileTheyOpen) {
  const std::uint64_t writable = us_.publish(ours_, {.read = true, .write = true});
  const std::uint64_t theirs = offer();
  flatbuffers::FlatBufferBuilder again;
  again.Finish(schema::CreateOffer(again, schema::vector_of(again, peer_.key.bytes)));
  EXPECT_TRUE(say(LocalMessage::offer, finished(again)).ok());  // and is not opened again
  // The opener thread is blocked, as in a driver that does not return.
  std::promise<void> go_on;
  us_.transport->off_the_lock([wait = go_on.get_future().share()] { wait.wait(); });
  LocalKey key = *decode_key(peer_.key.bytes);
  Status status;
  std::size_t taken = 0;
  for (; taken < 1000 && status.ok(); ++taken) {
    ++key.id.serial;
    flatbuffers::FlatBufferBuilder out;
    out.Finish(schema::CreateOffer(out, schema::vector_of(out, encode(key))));
    base::Fd some(::open("/dev/null", O_RDONLY | O_CLOEXEC));  // is checked when it is opened
    status = say(LocalMessage::offer, finished(out), std::span(&some, 1));
  }
  EXPECT_EQ(status.code(), Code::corrupt);
  EXPECT_LE(taken, 513u);
  go_on.set_value();
  ASSERT_TRUE(execute(true, theirs, writable, {0, 0, 64}).ok());  // and works on
  EXPECT_EQ(answer(), Code::ok);
}

TEST_F(LocalEndpointTest, PostsABatchOrNone_WhenAllocationsFail) {
  us_.publish(ours_, {.read = true, .write = true});
  const memory::Region& region = us_.registry.all().front()->region();
  peer_.publish(theirs_, {.read = true, .write = true});
  const auto mapping =
      us_.transport->import_key({peer_.key.bytes, peer_.fds, kPeer, true}, base::Deadline::in(10s));
  ASSERT_TRUE(mapping.ok());
  const Block blocks[] = {{0, 0, 64}, {128, 256, 64}};
  bool posted = false;
  test::fail_each_allocation(
      [&] {
        posted = false;
        posted = endpoint_
                     ->post({.op = Op::read,
                             .local = &region,
                             .remote = mapping->get(),
                             .shape = std::span<const Block>(blocks)})
                     .ok();
      },
      [&](bool) {
        const auto limit = base::Deadline::in(posted ? 10s : 5ms);
        while (ends_.all.empty() && !limit.passed()) endpoint_->progress(ends_);
        EXPECT_EQ(ends_.all.size(), posted ? 1u : 0u);
        EXPECT_EQ(ours_[0], posted ? std::byte{2} : std::byte{1});
        EXPECT_EQ(endpoint_->poll_hint().when, PollHint::When::idle);
        ends_.all.clear();
        ours_.assign(kBytes, std::byte{1});
      });
  EXPECT_TRUE(posted);
}

TEST_F(LocalEndpointTest, UsesNoRegionForARequestThatFoundNoMemory) {
  const std::uint64_t readable = us_.publish(ours_, {.read = true});
  const memory::Region& region = us_.registry.all().front()->region();
  const std::uint64_t theirs = offer();
  test::fail_each_allocation(
      [&] {
        (void)execute(false, theirs, readable, {0, 0, 64});
      },
      [&](bool) {});
  const auto limit = base::Deadline::in(10s);
  while (channel_.sent.empty() && !limit.passed()) endpoint_->progress(ends_);
  for (int i = 0; i < 100; ++i) endpoint_->progress(ends_);
  (void)us_.transport->retract(region, false);
  endpoint_->peer_terminated();
  EXPECT_EQ(us_.transport->retract(region, false).to_string(), "ok");
}

TEST_F(LocalEndpointTest, AnswersLaterWhenTheChannelIsFull) {
  const std::uint64_t writable = us_.publish(ours_, {.read = true, .write = true});
  const std::uint64_t theirs = offer();
  channel_.full = true;
  ASSERT_TRUE(execute(true, theirs, writable, {0, 0, kBytes}).ok());
  const auto limit = base::Deadline::after(base::Clock::steady(), 50ms);
  while (!limit.passed()) endpoint_->progress(ends_);
  channel_.full = false;
  EXPECT_EQ(answer(), Code::ok);
  EXPECT_EQ(ours_, std::vector<std::byte>(kBytes, std::byte{2}));
}

TEST_F(LocalEndpointTest, TriesOneAnswerALook_WhenThePeerRetractsAndReadsNothing) {
  constexpr std::uint64_t kRetracts = 20000;
  channel_.full = true;
  for (std::uint64_t serial = 1; serial <= kRetracts; ++serial) {
    flatbuffers::FlatBufferBuilder out;
    out.Finish(schema::CreateRetract(out, serial, serial % 2 == 0));
    ASSERT_TRUE(say(LocalMessage::retract, finished(out)).ok());
  }
  channel_.tries = 0;
  for (int look = 0; look < 100; ++look) endpoint_->progress(ends_);
  EXPECT_LE(channel_.tries, 100u);
  channel_.full = false;
  endpoint_->progress(ends_);
  ASSERT_EQ(channel_.sent.size(), kRetracts);
  for (std::uint64_t serial = 1; serial <= kRetracts; ++serial) {
    const auto& sent = channel_.sent[serial - 1];
    ASSERT_EQ(sent.message, LocalMessage::retracted);
    ASSERT_EQ(verified<schema::Retracted>(sent.bytes)->serial(), serial);
  }
  channel_.sent.clear();
}

TEST_F(LocalEndpointTest, AnswersARetractWhenItsLastMappingIsClosed) {
  const std::uint64_t serial = peer_.publish(theirs_, {.read = true, .write = true});
  const auto soon = base::Deadline::after(base::Clock::steady(), 10s);
  const RemoteKey key{peer_.key.bytes, peer_.fds, kPeer, true};
  auto first = us_.transport->import_key(key, soon), second = us_.transport->import_key(key, soon);
  ASSERT_TRUE(first.ok() && second.ok());
  flatbuffers::FlatBufferBuilder out;
  out.Finish(schema::CreateRetract(out, serial, false));
  ASSERT_TRUE(say(LocalMessage::retract, finished(out)).ok());
  *first = nullptr;
  const auto limit = base::Deadline::after(base::Clock::steady(), 50ms);
  while (!limit.passed()) endpoint_->progress(ends_);
  EXPECT_TRUE(channel_.sent.empty()) << "the second maps it";
  *second = nullptr;
  while (channel_.sent.empty() && !soon.passed()) endpoint_->progress(ends_);
  ASSERT_EQ(channel_.sent.size(), 1u);
  EXPECT_EQ(channel_.sent.front().message, LocalMessage::retracted);
}

TEST_F(LocalEndpointTest, IsCorrupt_WhenAPeerAsksForMoreCopiesThanMayBeInFlight) {
  const std::uint32_t most = us_.transport->capabilities().max_inflight;
  Status status;
  std::uint32_t taken = 0;
  for (; status.ok() && taken < 2 * most; ++taken) status = execute(true, 1, 2, {0, 0, 1});
  EXPECT_EQ(status.code(), Code::corrupt) << status.to_string();
  EXPECT_GT(taken, most);
}

TEST_F(LocalEndpointTest, IsCorrupt_WhenAPeerReadsNoAnswersToItsRetracts) {
  channel_.full = true;
  Status status;
  std::uint64_t serial = 0;
  while (status.ok() && serial <= kLivenessEntries) {
    flatbuffers::FlatBufferBuilder out;
    out.Finish(schema::CreateRetract(out, ++serial, false));
    status = say(LocalMessage::retract, finished(out));
  }
  EXPECT_EQ(status.code(), Code::corrupt) << status.to_string();
  EXPECT_EQ(serial, kLivenessEntries + 1);
}

TEST_F(LocalEndpointTest, WhatIsMalformedIsCorruptAndWhatIsUnknownUnsupported) {
  const std::vector<std::byte> garbage(64, std::byte{0xff});
  for (LocalMessage message :
       {LocalMessage::offer, LocalMessage::execute, LocalMessage::executed, LocalMessage::cancel,
        LocalMessage::retract, LocalMessage::retracted}) {
    EXPECT_EQ(say(message, garbage).code(), Code::corrupt);
    EXPECT_EQ(say(message, {}).code(), Code::corrupt);
  }
  EXPECT_EQ(say(static_cast<LocalMessage>(999), garbage).code(), Code::unsupported);
  flatbuffers::FlatBufferBuilder out;
  out.Finish(schema::CreateExecuted(out, 5, 0, out.CreateString("")));
  // late: the completion flag has reported it already
  EXPECT_TRUE(say(LocalMessage::executed, finished(out)).ok());
}

}  // namespace local_endpoint_test
}  // namespace linkspan::transport::local
