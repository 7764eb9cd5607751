// Tests what every transport must do.
#include <atomic>
#include <limits>
#include <thread>

#include "tests/support/transport_fixture.hpp"

namespace linkspan::test {
namespace transport_test {

/// Blocks of `bytes` that no other `part` has: what two batches in flight both write is either's.
/// The last comes first, so that none continues the one before it.
std::vector<Block> part_of_region(std::uint64_t part, std::uint64_t count, std::uint64_t bytes) {
  std::vector<Block> blocks;
  for (std::uint64_t i = count; i-- > 0;)
    blocks.push_back({(part * count + i) * bytes, (part * count + i) * bytes, bytes});
  return blocks;
}

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t kBytes = Memory::kBytes, kMiB = 1u << 20;
constexpr Block kOneByte[] = {{0, 0, 1}};

TEST_P(TransportConformance, CopiesExactlyTheBlocks) {
  const bool reads = link->near->transport().capabilities().initiator_reads;
  for (Op op : {Op::write, Op::read}) {
    if (op == Op::read && !reads) continue;  // HoldsToItsCapabilities has it refused
    for (std::uint64_t n : {1u, 3u, 4095u, 4097u, 65536u}) {
      link->here->fill(n + 1);
      link->there->fill(n);
      const Block blocks[] = {{5, 0, n},                            // from the very start,
                              {200000, 300001, n},                  // unaligned,
                              {(1u << 20) + 1, (1u << 20) + 3, n},  // beyond 1 MiB,
                              {kBytes - n - 9, kBytes - n, n}};     // to the very end
      link->run(link->batch(blocks, op));
      for (const Block& b : blocks) {
        if (op == Op::write)
          link->there->expect(b.remote_offset, *link->here, b.local_offset, n);
        else
          link->here->expect(b.local_offset, *link->there, b.remote_offset, n);
      }
      link->here->check();
      link->there->check();
    }
  }
}

/// tests/unit/tcp_sum_test.cpp shows that checksums detect changes.
TEST_P(TransportConformance, MakesChecksumsWhereItSaysSo) {
  const Capabilities& can = link->near->transport().capabilities();
  for (Op op : {Op::write, Op::read}) {
    if (op == Op::read && !can.initiator_reads) continue;
    link->here->fill(5);
    link->there->fill(6);
    std::vector<Block> blocks = part_of_region(1, 300, 1001);
    for (const Block more : {Block{0, 8, 8}, Block{17, 1, 3}, Block{kMiB - 7, kMiB, 70001}})
      blocks.push_back(more);
    Batch batch = link->batch(std::span<const Block>(blocks), op);
    batch.hints.checksum = true;
    if (!can.checksums) {
      EXPECT_EQ(link->post(batch).code(), Code::unsupported);
      link->linger();
    } else {
      link->run(batch);
      for (const Block& b : blocks)
        if (op == Op::write)
          link->there->expect(b.remote_offset, *link->here, b.local_offset, b.bytes);
        else
          link->here->expect(b.local_offset, *link->there, b.remote_offset, b.bytes);
    }
    link->here->check();
    link->there->check();
  }
}

TEST_P(TransportConformance, CopiesExactlyThePages) {
  for (std::uint64_t page : {1u, 577u, 4096u}) {
    link->there->fill(page);
    const auto last = static_cast<std::uint32_t>((kBytes - 24) / page - 1);
    const std::uint32_t from[] = {3, 0, 200, 9, last}, to[] = {last, 7, 0, 255, 11};
    link->run(link->batch(Pages{page, 24, 8, from, to}));
    for (std::size_t i = 0; i < std::size(from); ++i)
      link->there->expect(8 + to[i] * page, *link->here, 24 + from[i] * page, page);
    link->here->check();
    link->there->check();
  }
}

TEST_P(TransportConformance, PagesThatItKeepsAreThoseOfTheBatch) {
  constexpr std::uint64_t kPage = 97;
  std::vector<std::uint32_t> from, to;
  for (std::uint32_t i = 0; i < 3000; ++i) {
    from.push_back(i * 7 % 3000);
    to.push_back(2999 - i);
  }
  const Pages pages{kPage, 24, 8, from, to};
  const auto kept =
      take(link->near->transport().keep_pages(HereEnd::region(*link->here), *link->remote, pages));
  if (GetParam().name == "local_device" &&
      take(topology()->activate(topology()->devices()[0].uuid))->kernels().ok()) {
    EXPECT_NE(kept, nullptr) << "its kernel reads such lists";
  }
  for (const std::uint64_t first : {0u, 1000u, 1001u})
    for (const Op op : {Op::write, Op::read}) {
      link->here->fill(first + 1);
      link->there->fill(first + 2);
      Pages part = pages;
      part.local_index = pages.local_index.subspan(first, 1500);
      part.remote_index = pages.remote_index.subspan(first, 1500);
      Batch batch = link->batch(part, op);
      batch.checked = true;
      batch.kept = kept.get();
      batch.first = first;
      link->run(batch);
      for (std::uint64_t i = first; i < first + 1500; ++i)
        if (op == Op::write)
          link->there->expect(8 + to[i] * kPage, *link->here, 24 + from[i] * kPage, kPage);
        else
          link->here->expect(24 + from[i] * kPage, *link->there, 8 + to[i] * kPage, kPage);
      link->here->check();
      link->there->check();
    }
}

TEST_P(TransportConformance, CompletesWhatHasNoBytes) {
  const Block empty[] = {{kBytes, kBytes, 0}, {0, 7, 0}};
  const std::uint32_t index[] = {0, 5};
  link->run(link->batch(std::span<const Block>{}));
  link->run(link->batch(empty));
  link->run(link->batch(Pages{4096, 0, 0, {}, {}}));
  link->run(link->batch(Pages{0, 0, kBytes, index, index}));
  link->there->check();
}

TEST_P(TransportConformance, RefusesBlocksOutsideTheRegionsEvenIfTheSumOverflows) {
  for (const Block bad : {Block{kBytes, 0, 1}, Block{0, kBytes - 1, 2}, Block{kBytes + 1, 0, 0},
                          Block{kMax - 3, 0, 8}, Block{0, kMax - 3, 8}, Block{8, 8, kMax - 7}}) {
    const Block hidden[] = {{0, 0, 16}, bad};  // the good one before it is not started either
    EXPECT_EQ(link->post(link->batch(hidden)).code(), Code::invalid_argument)
        << bad.local_offset << " " << bad.remote_offset << " " << bad.bytes;
  }
  link->linger();
  link->there->check();
}

TEST_P(TransportConformance, RefusesPagesOutsideTheRegionsEvenIfTheSumOverflows) {
  const std::uint32_t zero[] = {0}, one[] = {1}, end[] = {kBytes / 4096};
  for (const Pages& bad :
       {Pages{4096, 0, 0, zero, end}, Pages{4096, 0, 0, end, zero}, Pages{4096, 0, 1, zero, end},
        Pages{4096, kMax - 4095, 0, one, zero},
        Pages{4096, 0, kMax - 4095, zero, one},  // wrap to 0
        Pages{kMax / 2 + 1, 0, 0, one, one}, Pages{0, 0, kBytes + 1, zero, zero}})
    EXPECT_EQ(link->post(link->batch(bad)).code(), Code::invalid_argument)
        << bad.page_bytes << " " << bad.local_base << " " << bad.remote_base;
  link->linger();
  link->there->check();
}

TEST_P(TransportConformance, RefusesIndexListsOfDifferentLengths) {
  const std::uint32_t two[] = {0, 1}, three[] = {0, 1, 2};
  EXPECT_EQ(link->post(link->batch(Pages{64, 0, 0, two, three})).code(), Code::invalid_argument);
  EXPECT_EQ(link->post(link->batch(Pages{64, 0, 0, three, two})).code(), Code::invalid_argument);
  link->linger();
  link->there->check();
}

TEST_P(TransportConformance, RefusesWhatThePeerDoesNotPermit) {
  for (const Permissions peers : {Permissions{.read = true}, Permissions{.write = true}}) {
    const auto guarded = take(link->far->allocate(peers));
    guarded->fill(3);
    const PublishedKey key = take(link->far->publish(*guarded));
    auto remote = take(link->import(key));
    Batch batch = link->batch(kOneByte, peers.read ? Op::write : Op::read);
    batch.remote = remote.get();
    const Code refused = link->post(batch).code();
    EXPECT_TRUE(refused == Code::permission_denied ||
                (batch.op == Op::read && refused == Code::unsupported));
    link->linger();
    guarded->check();
    remote.reset();
    EXPECT_TRUE(link->retract(*link->far, *guarded).ok());
  }
}

TEST_P(TransportConformance, HoldsToItsCapabilities) {
  const Capabilities& can = link->near->transport().capabilities();
  if (!can.initiator_reads) {
    EXPECT_EQ(link->post(link->batch(kOneByte, Op::read)).code(), Code::unsupported);
  }
  if (!can.orders_streams) {  // those that do: stream_order_test
    Batch batch = link->batch(kOneByte);
    batch.streams.wants_event = true;
    link->run(batch);
    EXPECT_FALSE(link->posted.event.has_value());
  }
  std::vector<Block> many(can.max_batch_blocks, Block{0, 0, 0});
  link->run(link->batch(many));
  many.push_back(many.back());
  EXPECT_EQ(link->post(link->batch(many)).code(), Code::invalid_argument);
  std::vector<std::uint32_t> indices(can.max_batch_pages, 0);
  link->run(link->batch(Pages{.local_index = indices, .remote_index = indices}));
  indices.push_back(0);
  EXPECT_EQ(link->post(link->batch(Pages{.local_index = indices, .remote_index = indices})).code(),
            Code::invalid_argument);
  const std::vector<Block> large(can.max_batch_bytes / kBytes + 1, Block{0, 0, kBytes});
  EXPECT_EQ(link->post(link->batch(large)).code(), Code::invalid_argument);

  using enum MemoryKind;
  for (MemoryKind kind : {host, pinned, shared, device, managed}) {
    if (can.local_kinds.contains(kind)) continue;
    memory::Region::Facts facts = HereEnd::region(*link->here).facts();
    facts.kind = kind;
    const auto region = take(memory::Region::create(facts));
    EXPECT_EQ(link->near->transport().publish(*region).status().code(), Code::unsupported);
  }
}

TEST_P(TransportConformance, PushesBackAtItsLimitAndRecovers) {
  const std::uint32_t limit = link->near->transport().capabilities().max_inflight;
  ASSERT_GT(limit, 0u);
  for (std::uint32_t i = 0; i < limit; ++i)
    ASSERT_EQ(link->post(link->batch(part_of_region(i, 1, 1))).to_string(), "ok")
        << "fewer than max_inflight: " << i;
  for (int i = 0; i < 2; ++i)
    ASSERT_EQ(link->post(link->batch(kOneByte)).code(), Code::no_resource);
  ASSERT_TRUE(link->drain());
  link->run(link->batch(kOneByte));
}

TEST_P(TransportConformance, CallsNothingFromInsidePost) {
  link->run(link->batch(kOneByte));  // now it has seen a sink
  const std::size_t before = link->done.size();
  ASSERT_TRUE(link->post(link->batch(std::span<const Block>{})).ok());  // done before it began
  EXPECT_EQ(link->done.size(), before);
  ASSERT_TRUE(link->drain());
}

TEST_P(TransportConformance, ReadsTheShapeDuringPostOnly) {
  auto blocks = std::make_unique<Block[]>(2);
  blocks[0] = blocks[1] = {64, 128, 32};
  const Batch batch = link->batch(std::span<const Block>(blocks.get(), 2));
  ASSERT_TRUE(link->post(batch).ok());
  blocks.reset();
  ASSERT_TRUE(link->drain());
  link->there->expect(128, *link->here, 64, 32);
  link->there->check();
}

TEST_P(TransportConformance, CompletesEachBatchOnceAlsoWhenClosed) {
  for (unsigned i = 0; i < 4; ++i)
    ASSERT_EQ(link->post(link->batch(part_of_region(i, 8, 32768))).to_string(), "ok");
  link->progress();
  link->endpoint->close();
  EXPECT_EQ(link->post(link->batch(kOneByte)).code(), Code::canceled);
  ASSERT_TRUE(link->drain()) << "close() lost a completion";
  link->linger();  // a second one would be counted as not in flight
  EXPECT_EQ(link->done.size(), 4u);
  for (const auto& [cookie, status] : link->done)
    EXPECT_TRUE(status.ok() || status.code() == Code::canceled) << status.to_string();
}

TEST_P(TransportConformance, NoByteLandsAfterTheCompletionOfACancel) {
  std::vector<Block> blocks;
  for (std::uint64_t i = kBytes / 4096; i-- > 0;) blocks.push_back({i * 4096, i * 4096, 4096});
  for (std::uint64_t steps : {0u, 1u, 100u}) {
    const Batch batch = link->batch(blocks);
    ASSERT_TRUE(link->post(batch).ok());
    for (std::uint64_t i = 0; i < steps; ++i) link->progress();
    link->endpoint->cancel(batch.cookie);
    ASSERT_TRUE(link->drain());
    const Status& status = link->done.at(batch.cookie);
    EXPECT_TRUE(status.ok() || status.code() == Code::canceled) << status.to_string();
    link->here->fill(steps + 10);  // the user has both memories back, and uses them
    link->there->fill(steps + 20);
    link->endpoint->cancel(batch.cookie);  // ignored: not in flight
    link->linger();
    link->here->check();
    link->there->check();
  }
}

TEST_P(TransportConformance, RefusesTheMappingOfAnotherPeer) {
  Link stranger(take(GetParam().open(GetParam())));
  stranger.join();
  const auto foreign = link->import(stranger.key);
  if (!foreign.ok()) return;  // it knew by the key
  Batch batch = link->batch(kOneByte);
  batch.remote = foreign->get();
  EXPECT_EQ(link->post(batch).code(), Code::invalid_argument);
  link->linger();
  stranger.there->check();
}

TEST_P(TransportConformance, AwaitsTheOtherPeerUntilTheDeadline) {
  Link early(take(GetParam().open(GetParam())));  // the far end has not called connect()
  const Batch batch = early.batch(kOneByte);
  const Status status = early.post(batch);
  if (!status.ok()) {
    EXPECT_EQ(status.code(), Code::no_resource);
    early.clock.advance(11s);
    EXPECT_EQ(early.post(early.batch(kOneByte)).code(), Code::timed_out);
  }
  early.join();
  ASSERT_TRUE(early.drain());  // a transport that needs no answer of the other peer took it
  EXPECT_EQ(early.done.size(), status.ok() ? 1u : 0u);
}

TEST_P(TransportConformance, ImportsUntilTheDeadlineAndNothingThatIsCutShort) {
  FakeClock clock;
  const Deadline deadline = Deadline::after(clock, 5ms);
  EXPECT_TRUE(link->import(link->key, deadline).ok());
  clock.advance(5ms);
  EXPECT_EQ(link->import(link->key, deadline).status().code(), Code::timed_out);

  std::vector<std::byte> cut = link->key.bytes;
  while (!cut.empty()) {
    cut.pop_back();
    EXPECT_EQ(link->import(cut, link->key.fds).status().code(), Code::corrupt) << cut.size();
  }
  if (!link->key.fds.empty()) {
    EXPECT_EQ(link->import(link->key.bytes, SharedFds()).status().code(), Code::corrupt);
  }
}

TEST_P(TransportConformance, PublishesAndImportsBesideTheDataPath) {  // for the thread sanitizer
  std::vector<std::unique_ptr<Memory>> others;
  for (int i = 0; i < 8; ++i) others.push_back(take(link->far->allocate({.read = true})));
  std::atomic<int> imported{0};
  std::atomic<bool> finished{false};
  std::jthread control([&] {
    std::vector<Result<PublishedKey>> keys;
    keys.reserve(others.size());
    for (const auto& other : others) keys.push_back(link->far->publish(*other));
    for (const auto& key : keys)
      if (key.ok() && link->import(*key).ok()) ++imported;
    finished = true;
  });
  while (!finished) link->run(link->batch(kOneByte));
  EXPECT_EQ(imported, 8);
  for (const auto& other : others) EXPECT_TRUE(link->retract(*link->far, *other).ok());
}

TEST_P(TransportConformance, AKeyIsDeadAfterRetract) {
  const auto gone = take(link->far->allocate({.read = true, .write = true}));
  gone->fill(3);
  const PublishedKey key = take(link->far->publish(*gone));
  auto remote = take(link->import(key));
  const bool at_once = link->far->retract(*gone).ok();
  Batch late = link->batch(kOneByte);
  late.remote = remote.get();
  if (link->post(late).ok()) {
    ASSERT_TRUE(link->drain());
    EXPECT_FALSE(link->done.at(late.cookie).ok());
  }
  if (!at_once) {  // a mapping: it lives until its importer closes it
    link->linger();
    EXPECT_EQ(link->far->retract(*gone).code(), Code::busy);
    remote.reset();
    EXPECT_TRUE(link->retract(*link->far, *gone).ok());
  }
  // A transport that cannot check the region's state at import learns of it with the first batch.
  if (auto again = link->import(key); again.ok()) {
    ASSERT_TRUE(link->near->transport().capabilities().leaves_host);
    Batch later = link->batch(kOneByte);
    later.remote = again->get();
    ASSERT_TRUE(link->post(later).ok());
    ASSERT_TRUE(link->drain());
    EXPECT_FALSE(link->done.at(later.cookie).ok());
    EXPECT_FALSE((*again)->alive());
    EXPECT_EQ(link->post(later).code(), Code::unreachable);
  }
  gone->check();
}

TEST_P(TransportConformance, EndsWhatIsInFlightWhenThePeerIsGone) {
  for (unsigned i = 0; i < 8; ++i)
    ASSERT_EQ(link->post(link->batch(part_of_region(i, 4, 32768))).to_string(), "ok");
  link->progress();
  link->far->die();
  link->endpoint->peer_terminated();
  EXPECT_EQ(link->post(link->batch(kOneByte)).code(), Code::disconnected);
  ASSERT_TRUE(link->drain()) << "the death of the peer lost a completion";
  EXPECT_EQ(link->done.size(), 8u);
  for (const auto& [cookie, status] : link->done)
    EXPECT_TRUE(status.ok() || status.code() == Code::disconnected) << status.to_string();
  link->here->fill(9);
  link->linger();
  link->here->check();
}

TEST_P(TransportConformance, NeedsProgressOnlyWhereNextLookAsksForIt) {
  const auto rests = [&] { return link->endpoint->poll_hint().when == PollHint::When::idle; };
  // A transport that has no data connection yet asks for a look when its time for one is over.
  const Deadline connected = Link::soon();
  while (!rests() && !connected.passed()) link->progress();
  EXPECT_TRUE(rests());
  for (unsigned i = 0; i < 4; ++i)
    ASSERT_EQ(link->post(link->batch(part_of_region(i, 4, 65536))).to_string(), "ok");
  const Deadline limit = Link::soon();
  while (link->in_flight() != 0 && !limit.passed()) link->progress_when_asked();
  EXPECT_EQ(link->in_flight(), 0u) << "poll_hint() does not tell when it is needed";
  // By several devices all may go before the last one is connected.
  while (!rests() && !limit.passed()) link->progress_when_asked();
  EXPECT_TRUE(rests());
}

TEST_P(TransportConformance, ExplainsItsPath) {
  for (Op op : {Op::write, Op::read}) {
    const Explanation why =
        link->endpoint->explain(op, HereEnd::region(*link->here), *link->remote, {1, 65536});
    EXPECT_NE(why.path, "");
    EXPECT_NE(why.reason, "");
    EXPECT_TRUE(why.executor == "here" || why.executor == "peer" || why.executor == "both")
        << why.executor;
    for (const PathRefusal& refusal : why.refused) EXPECT_NE(refusal.reason, "") << refusal.path;
  }
}

TEST_P(TransportConformance, RefusesMessagesThatItDoesNotKnow) {
  EXPECT_EQ(link->endpoint->on_message(0xFFFF, {}, {}).code(), Code::unsupported);
  const std::vector<std::byte> noise(200, std::byte{0xA5});
  for (std::uint16_t op = 0; op < 64; ++op)
    for (std::size_t bytes : {0u, 3u, 16u, 200u}) {
      const std::span<const std::byte> message(noise.data(), bytes);
      EXPECT_FALSE(link->endpoint->on_message(op, message, {}).ok()) << op << " " << bytes;
    }
  link->run(link->batch(kOneByte));  // and goes on
}

INSTANTIATE_TEST_SUITE_P(Every, TransportConformance, ::testing::ValuesIn(all_subjects()),
                         [](const auto& subject) { return subject.param.name; });

}  // namespace transport_test
}  // namespace linkspan::test

// Mutants of loopback.cpp with which this suite went red, without a sanitizer too, and where:
//   overflowing range check, blocks and pages    RefusesBlocksOutside..., RefusesPagesOutside...
//   short copy; overrun; last block dropped;
//     page indices swapped; a read that writes   CopiesExactlyTheBlocks, CopiesExactlyThePages
//   completion lost on close; post after close   CompletesEachBatchOnceAlsoWhenClosed
//   late write after cancel; completed twice     NoByteLandsAfterTheCompletionOfACancel
//   empty batch completed inside post            CallsNothingFromInsidePost
//   one more than max_inflight; no slot back     PushesBackAtItsLimitAndRecovers
//   refused batch started in part                RefusesBlocksOutside...
//   the shorter index list taken                 RefusesIndexListsOfDifferentLengths
//   permissions, import deadline, retract or     RefusesWhatThePeerDoesNotPermit, ImportsUntil...,
//     the length of a key ignored                AKeyIsDeadAfterRetract
//   shape read after post                        ReadsTheShapeDuringPostOnly (by a crash)
//   publish without the mutex                    only ThreadSanitizer, in 4 of 5 runs
