// Tests a LocalEndpoint whose peer breaks the rules: requests are checked where the memory is,
// whatever the peer's own library would have refused.
#include "transport/local/endpoint.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <deque>
#include <future>

#include "base/schema/local_generated.h"
#include "base/sealed_memory.hpp"
#include "tests/support/no_memory.hpp"
#include "tests/support/process.hpp"
#include "tests/support/take.hpp"

namespace linkspan::transport::local {
namespace local_endpoint_test {

using namespace std::chrono_literals;

constexpr std::uint64_t kUs = 11, kPeer = 77;
constexpr std::uint64_t kBytes = 8192;

class RecordingChannel final : public Channel {
 public:
  Status send(std::uint16_t op, std::span<const std::byte> bytes, std::span<base::Fd>) override {
    ++tries;
    if (full) return Status::no_resource();
    sent.push_back({static_cast<LocalMessage>(op), {bytes.begin(), bytes.end()}});
    return {};
  }
  SessionKey session_key() const noexcept override { return key_; }
  PeerProcess process() const noexcept override {
    return {.pid = pid, .pidfd = pidfd, .same_user = same_user, .incarnation = kPeer};
  }
  std::string_view peer_name() const noexcept override { return "hostile"; }
  void deliver_notification(std::vector<std::byte>, std::uint64_t) override {}
  bool connects() const noexcept override { return false; }
  Status open_data_connection() override {
    return {Code::unsupported, Scope::peer, "no streams here"};
  }
  void fail_peer(const Status&) override {}

  struct Sent {
    LocalMessage message;
    std::vector<std::byte> bytes;
  };
  std::deque<Sent> sent;
  bool full = false;
  std::size_t tries = 0;
  bool same_user = true;
  std::int64_t pid = ::getpid();  // both halves are in this process
  int pidfd = -1;

 private:
  std::array<std::byte, 32> key_{};
};

class Ends final : public CompletionSink {
 public:
  void complete(Completion&& completion) override { all.push_back(std::move(completion)); }
  std::vector<Completion> all;
};

/// One Engine's parts: memory, registry, transport.
struct Half {
  explicit Half(std::uint64_t incarnation) : registry(incarnation, nullptr) {
    auto made = LocalTransport::create({.registry = &registry, .incarnation = incarnation});
    if (!made.ok()) ADD_FAILURE() << made.status().to_string();
    transport.reset(static_cast<LocalTransport*>((*made).release()));
  }
  std::uint64_t publish(std::vector<std::byte>& memory, Permissions peers) {
    auto added = registry.add(memory.data(), memory.size(), peers, false);
    if (!added.ok()) ADD_FAILURE() << added.status().to_string();
    auto published = transport->publish((*added)->region());
    if (!published.ok()) ADD_FAILURE() << published.status().to_string();
    key = *std::move(published);
    fds = *memory::fds_for_peer(key);
    return (*added)->id().serial;
  }

  memory::Registry registry;
  std::unique_ptr<LocalTransport> transport;
  memory::PublishedKey key;   // of the last
  std::vector<base::Fd> fds;  // as a peer gets them
};

class LocalEndpointTest : public ::testing::Test {
 protected:
  LocalEndpointTest() {
    auto made = us_.transport->connect(peer_.transport->address(), channel_,
                                       base::Deadline::after(base::Clock::steady(), 10s));
    if (!made.ok()) ADD_FAILURE() << made.status().to_string();
    endpoint_ = *std::move(made);
  }
  ~LocalEndpointTest() override {
    endpoint_->close();
    EXPECT_TRUE(ends_.all.empty()) << "an end that no test has looked at";
  }

  Status say(LocalMessage message, std::span<const std::byte> bytes, std::span<base::Fd> fds = {}) {
    return endpoint_->on_message(static_cast<std::uint16_t>(message), bytes, fds);
  }
  /// Offers the peer's region as its library would.
  std::uint64_t offer() {
    const std::uint64_t serial = peer_.publish(theirs_, {.read = true, .write = true});
    flatbuffers::FlatBufferBuilder out;
    const auto key = schema::vector_of(out, peer_.key.bytes);
    out.Finish(schema::CreateOffer(out, key));
    EXPECT_TRUE(say(LocalMessage::offer, finished(out), peer_.fds).ok());
    return serial;
  }
  Status execute(bool write, std::uint64_t theirs, std::uint64_t ours, schema::WireBlock block) {
    flatbuffers::FlatBufferBuilder out;
    const auto blocks = out.CreateVectorOfStructs(&block, 1);
    out.Finish(schema::CreateExecute(out, ++asked_, write, theirs, ours, blocks));
    return say(LocalMessage::execute, finished(out));
  }
  Status execute(std::uint64_t theirs, std::uint64_t ours, std::uint64_t page_bytes,
                 const std::vector<std::uint32_t>& from, const std::vector<std::uint32_t>& to) {
    flatbuffers::FlatBufferBuilder out;
    const auto local = out.CreateVector(from), remote = out.CreateVector(to);
    const auto pages = schema::CreateWirePages(out, page_bytes, 5, 3, local, remote);
    out.Finish(schema::CreateExecute(out, ++asked_, true, theirs, ours, 0, kNoFlag, pages));
    return say(LocalMessage::execute, finished(out));
  }
  /// Returns the answer to the last execute().
  Code answer() {
    const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
    while (channel_.sent.empty() && !limit.passed()) endpoint_->progress(ends_);
    if (channel_.sent.empty()) {
      ADD_FAILURE() << "no answer";
      return Code::internal;
    }
    const auto sent = channel_.sent.front();
    channel_.sent.pop_front();
    EXPECT_EQ(sent.message, LocalMessage::executed);
    const auto* wire = verified<schema::Executed>(sent.bytes);
    EXPECT_EQ(wire->id(), asked_);
    return static_cast<Code>(wire->code());
  }

  std::vector<std::byte> ours_{kBytes, std::byte{1}}, theirs_{kBytes, std::byte{2}};
  Half us_{kUs}, peer_{kPeer};
  RecordingChannel channel_;
  Ends ends_;
  std::unique_ptr<Endpoint> endpoint_;
  std::uint64_t asked_ = 0;
};

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

TEST(LocalImports, AreBoundedForEachPeerAndRoomComesBack) {
  memory::Registry registry(kUs, nullptr);
  auto made = LocalTransport::create({.registry = &registry, .incarnation = kUs, .max_imports = 2});
  ASSERT_TRUE(made.ok());
  Half peer{kPeer}, other{kPeer + 1};
  std::vector<std::byte> memory(kBytes);
  const auto import = [&](Half& of) {
    of.publish(memory, {.read = true});
    const auto soon = base::Deadline::after(base::Clock::steady(), 10s);
    return (*made)->import_key({of.key.bytes, of.fds, 0, true}, soon);
  };
  auto first = import(peer), second = import(peer), third = import(peer);
  EXPECT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(third.status().code(), Code::busy);
  EXPECT_NE(third.status().what().find("2 regions"), std::string::npos);
  EXPECT_TRUE(import(other).ok());
  *first = nullptr;
  const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
  while (!(third = import(peer)).ok() && !limit.passed()) {  // it is closed aside
  }
  EXPECT_TRUE(third.ok()) << third.status().to_string();
}

/// However many Engines, hence incarnations, it opens.
TEST(LocalImports, AreBoundedForEachProcess) {
  memory::Registry registry(kUs, nullptr);
  auto made = LocalTransport::create({.registry = &registry, .incarnation = kUs, .max_imports = 2});
  ASSERT_TRUE(made.ok());
  Half first{kPeer}, second{kPeer + 1};
  std::vector<std::byte> memory(kBytes);
  const auto import = [&](Half& of, std::int64_t pid) {
    of.publish(memory, {.read = true});
    const auto soon = base::Deadline::after(base::Clock::steady(), 10s);
    return (*made)->import_key({of.key.bytes, of.fds, 0, true, pid}, soon);
  };
  const auto one = import(first, 4711), two = import(second, 4711);
  EXPECT_TRUE(one.ok() && two.ok());
  EXPECT_EQ(import(second, 4711).status().code(), Code::busy);
  EXPECT_TRUE(import(second, 4712).ok());
}

/// A memfd may claim all addresses and have no page.
TEST(LocalImports, OfSparseMemoryAreBounded) {
  memory::Registry registry(kUs, nullptr);
  auto made = LocalTransport::create({.registry = &registry, .incarnation = kUs});
  ASSERT_TRUE(made.ok());
  Half peer{kPeer};
  auto shared = peer.registry.allocate_shared(kBytes, {.read = true});
  ASSERT_TRUE(shared.ok());
  auto published = peer.transport->publish((*shared)->region());
  ASSERT_TRUE(published.ok());
  LocalKey key = *decode_key(published->bytes);
  key.process = {};  // another one's
  key.bytes = std::uint64_t{100} << 40;
  auto fds = *memory::fds_for_peer(*published);
  fds[1] = *base::make_memfd("sparse", key.bytes);
  ASSERT_EQ(::fcntl(fds[1].get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  const auto soon = base::Deadline::after(base::Clock::steady(), 10s);
  const auto imported =
      static_cast<LocalTransport&>(**made).import_memory({encode(key), fds, 0, false, 4711}, soon);
  ASSERT_TRUE(imported.ok()) << imported.status().to_string();
  EXPECT_EQ((*imported)->mapped(), Mapped::nothing);
  EXPECT_NE((*imported)->why_not_mapped().find("bytes of this peer's process"), std::string::npos)
      << (*imported)->why_not_mapped();
}

/// A GPU would get an address that no process has pinned.
TEST(LocalImports, MemoryThatIsMappedIsNotPinnedBecauseItsOwnerSaysSo) {
  memory::Registry registry(kPeer, nullptr);
  auto made = LocalTransport::create({.registry = &registry, .incarnation = kPeer});
  ASSERT_TRUE(made.ok());
  auto shared = registry.allocate_shared(kBytes, {.read = true, .write = true});
  ASSERT_TRUE(shared.ok()) << shared.status().to_string();
  auto published = (*made)->publish((*shared)->region());
  ASSERT_TRUE(published.ok()) << published.status().to_string();
  LocalKey key = *decode_key(published->bytes);
  ASSERT_TRUE(key.handle.memfd);
  for (const MemoryKind kind : {MemoryKind::pinned, MemoryKind::host, MemoryKind::device}) {
    key.kind = kind;
    EXPECT_EQ(decode_key(encode(key)).status().code(), Code::corrupt) << name_of(kind);
  }
}

/// Neither the import, nor what its end needs, nor the thread that closes it may find memory.
TEST(LocalImports, AreGoneOnceTheyAreDropped_WhenAllocationsFail) {
  Half us{kUs}, peer{kPeer};
  std::vector<std::byte> memory(kBytes);
  peer.publish(memory, {.read = true});
  const memory::RegionId id = decode_key(peer.key.bytes)->id;
  const auto import = [&] {
    return us.transport->import_key({peer.key.bytes, peer.fds, 0, true}, base::Deadline::in(10s));
  };
  const auto expect_gone = [&] {
    for (const auto limit = base::Deadline::in(10s); us.transport->maps(id) && !limit.passed();)
      std::this_thread::yield();
    EXPECT_FALSE(us.transport->maps(id));
  };
  test::fail_each_allocation([&] { (void)import().ok(); }, [&](bool) { expect_gone(); });
  auto mapping = import();
  test::fail_each_allocation([&] { (void)us.transport->unmap(id); },  // it may run here
                             [&](bool threw) {
                               if (threw) return;
                               expect_gone();
                               mapping = import();
                             });
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

/// Between private memory of ours and the peer's, as if that were another process.
class LocalBounce : public LocalEndpointTest {
 protected:
  LocalBounce() {
    peer_.publish(theirs_, {.read = true, .write = true, .exclusive = true});
    LocalKey key = *decode_key(peer_.key.bytes);
    ++key.process.nonce;
    auto imported = us_.transport->import_key({encode(key), peer_.fds},
                                              base::Deadline::after(base::Clock::steady(), 10s));
    if (!imported.ok()) ADD_FAILURE() << imported.status().to_string();
    remote_ = *std::move(imported);
    us_.publish(ours_, {});
  }
  void post(std::uint64_t cookie, Op op = Op::write) {
    const Block all{0, 0, kBytes};
    const auto region = us_.registry.all().front();
    const auto posted = endpoint_->post({.op = op,
                                         .local = &region->region(),
                                         .remote = remote_.get(),
                                         .shape = std::span(&all, 1),
                                         .cookie = cookie});
    EXPECT_EQ(posted.status().to_string(), "ok");
  }
  /// The next request to execute, of what it was offered before; null: none came.
  const schema::Execute* asked() {
    const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
    while (!limit.passed()) {
      endpoint_->progress(ends_);
      for (; !channel_.sent.empty(); channel_.sent.pop_front()) {
        last_ = channel_.sent.front();
        if (last_.message != LocalMessage::execute) continue;
        channel_.sent.pop_front();
        return verified<schema::Execute>(last_.bytes);
      }
    }
    ADD_FAILURE() << "the peer was asked for nothing";
    return nullptr;
  }
  void executed(std::uint64_t id, Code code) {
    flatbuffers::FlatBufferBuilder out;
    out.Finish(schema::CreateExecuted(out, id, static_cast<std::uint8_t>(code),
                                      out.CreateString("said the peer")));
    EXPECT_TRUE(say(LocalMessage::executed, finished(out)).ok());
  }
  Status end() {
    const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
    while (ends_.all.empty() && !limit.passed()) endpoint_->progress(ends_);
    if (ends_.all.size() != 1) return {Code::internal, Scope::request, "not one end"};
    const Status status = ends_.all.front().status;
    ends_.all.clear();
    return status;
  }

  std::unique_ptr<Mapping> remote_;
  RecordingChannel::Sent last_;
};

TEST_F(LocalBounce, EndsWithTheSecondHopAndNotBefore) {
  post(1);
  const auto* execute = asked();
  ASSERT_NE(execute, nullptr);
  EXPECT_TRUE(execute->write());
  EXPECT_EQ(execute->blocks()->size(), 1u);
  EXPECT_EQ(execute->blocks()->Get(0)->bytes(), kBytes);
  const std::uint64_t first = execute->id();
  executed(first + 1, Code::ok);  // of nothing
  endpoint_->cancel(1);
  for (int i = 0; i < 100; ++i) endpoint_->progress(ends_);
  EXPECT_TRUE(ends_.all.empty()) << "the peer may still touch the memory";
  executed(first, Code::ok);
  EXPECT_EQ(end().to_string(), "ok");
  post(2);
  executed(first, Code::ok);  // repeated: the number was another batch's
  const auto* again = asked();
  ASSERT_NE(again, nullptr);
  EXPECT_NE(again->id(), first);
  executed(again->id(), Code::permission_denied);
  EXPECT_EQ(end().code(), Code::permission_denied);
}

TEST_F(LocalBounce, OfWhatThePeerCannotMapItTellsInItsWords) {
  post(1, Op::read);
  const auto* execute = asked();
  ASSERT_NE(execute, nullptr);
  executed(execute->id(), Code::unsupported);
  const Status status = end();
  EXPECT_EQ(status.code(), Code::unreachable);
  EXPECT_NE(status.what().find("said the peer"), std::string::npos) << status.what();
}

TEST_F(LocalBounce, AsksWhenTheChannelHasRoomAgain) {
  channel_.full = true;
  post(1);
  const auto limit = base::Deadline::after(base::Clock::steady(), 50ms);
  while (!limit.passed()) endpoint_->progress(ends_);
  EXPECT_NE(endpoint_->poll_hint().when, PollHint::When::idle);
  channel_.full = false;
  const auto* execute = asked();
  ASSERT_NE(execute, nullptr);
  executed(execute->id(), Code::ok);
  EXPECT_EQ(end().to_string(), "ok");
}

TEST_F(LocalBounce, Ends_WhenThereIsNoMemoryToMakeItsBuffer) {
  const test::NoMemory none("ls-opener");
  post(1);
  EXPECT_EQ(end().code(), Code::system);
}

TEST_F(LocalBounce, WhatAPeerLeavesBehindEndsWithIt) {
  post(1);
  ASSERT_NE(asked(), nullptr);
  endpoint_->peer_terminated();
  EXPECT_EQ(end().code(), Code::disconnected);
}

/// The serials are easy to guess, and another peer's data are in that memory.
TEST_F(LocalBounce, NobodyCanAskForTheBounceMemory) {
  post(1);
  const auto* execute = asked();
  ASSERT_NE(execute, nullptr);
  const std::uint64_t id = execute->id(), bounce = execute->sender_serial();
  const std::uint64_t theirs = offer();
  for (const bool write : {true, false}) {
    ASSERT_TRUE(this->execute(write, theirs, bounce, {0, 0, 64}).ok());
    EXPECT_EQ(answer(), Code::permission_denied);
  }
  executed(id, Code::ok);
  EXPECT_EQ(end().to_string(), "ok");
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
