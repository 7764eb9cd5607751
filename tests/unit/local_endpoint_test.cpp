// A LocalEndpoint whose peer does not keep the rules: what it asks for is checked where the memory
// is, whatever the peer's own library would have refused.
#include "transport/local/endpoint.hpp"

#include <gtest/gtest.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <deque>
#include <future>

#include "base/schema/local_generated.h"

namespace linkspan::transport::local {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kUs = 11, kPeer = 77;
constexpr std::uint64_t kBytes = 8192;

class RecordingChannel final : public Channel {
 public:
  Status send(std::uint16_t op, std::span<const std::byte> bytes, std::span<base::Fd>) override {
    if (full) return Status::no_resource();
    sent.push_back({static_cast<Message>(op), {bytes.begin(), bytes.end()}});
    return {};
  }
  SessionKey session_key() const noexcept override { return key_; }
  PeerProcess process() const noexcept override {
    return {.pid = pid, .pidfd = -1, .same_user = same_user, .incarnation = kPeer};
  }
  std::string_view peer_name() const noexcept override { return "hostile"; }

  struct Sent {
    Message message;
    std::vector<std::byte> bytes;
  };
  std::deque<Sent> sent;
  bool full = false;
  bool same_user = true;
  std::int64_t pid = ::getpid();  // both halves are in this process

 private:
  std::array<std::byte, 32> key_{};
};

class NoSink final : public CompletionSink {
 public:
  void complete(Completion&&) override { ADD_FAILURE() << "nothing of ours was in flight"; }
};

/// One Engine's half: memory, registry, transport.
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
    return (*added)->id().serial;
  }

  memory::Registry registry;
  std::unique_ptr<LocalTransport> transport;
  memory::PublishedKey key;  // of the last
};

class LocalEndpointTest : public ::testing::Test {
 protected:
  LocalEndpointTest() {
    auto made = us_.transport->connect(peer_.transport->address(), channel_,
                                       base::Deadline::after(base::Clock::steady(), 10s));
    if (!made.ok()) ADD_FAILURE() << made.status().to_string();
    endpoint_ = *std::move(made);
  }
  ~LocalEndpointTest() override { endpoint_->close(); }

  Status say(Message message, std::span<const std::byte> bytes, std::span<base::Fd> fds = {}) {
    return endpoint_->on_message(static_cast<std::uint16_t>(message), bytes, fds);
  }
  /// The peer's region, offered as its library would.
  std::uint64_t offer() {
    const std::uint64_t serial = peer_.publish(theirs_, {.read = true, .write = true});
    flatbuffers::FlatBufferBuilder out;
    const auto key = schema::vector_of(out, peer_.key.bytes);
    out.Finish(schema::CreateOffer(out, key));
    EXPECT_TRUE(say(Message::offer, finished(out), peer_.key.fds).ok());
    return serial;
  }
  Status execute(bool write, std::uint64_t theirs, std::uint64_t ours, schema::WireBlock block) {
    flatbuffers::FlatBufferBuilder out;
    const auto blocks = out.CreateVectorOfStructs(&block, 1);
    out.Finish(schema::CreateExecute(out, ++asked_, write, theirs, ours, blocks));
    return say(Message::execute, finished(out));
  }
  /// The answer to the last execute().
  Code answer() {
    const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
    while (channel_.sent.empty() && !limit.passed()) endpoint_->progress(sink_);
    if (channel_.sent.empty()) {
      ADD_FAILURE() << "no answer";
      return Code::internal;
    }
    const auto sent = channel_.sent.front();
    channel_.sent.pop_front();
    EXPECT_EQ(sent.message, Message::executed);
    const auto* wire = verified<schema::Executed>(sent.bytes);
    EXPECT_EQ(wire->id(), asked_);
    return static_cast<Code>(wire->code());
  }

  std::vector<std::byte> ours_{kBytes, std::byte{1}}, theirs_{kBytes, std::byte{2}};
  Half us_{kUs}, peer_{kPeer};
  RecordingChannel channel_;
  NoSink sink_;
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
  EXPECT_EQ(answer(), Code::unreachable);
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
  auto mapping = us_.transport->import_key({peer_.key.bytes, peer_.key.fds, kPeer, false}, soon);
  ASSERT_TRUE(mapping.ok());
  Address address = *decode_address(peer_.transport->address());
  ++address.process.nonce;  // not this process
  channel_.pid = stranger.pid;
  const memory::Region& region = us_.registry.all().front()->region();
  ASSERT_EQ(region.facts().id.serial, ours);
  // The secret of the process that speaks, or another one, at an address that both have.
  for (const bool same : {true, false}) {
    if (!same) address.proof[0] ^= std::byte{1};
    auto endpoint = us_.transport->connect(encode(address), channel_, soon);
    ASSERT_TRUE(endpoint.ok());
    const Explanation way = (*endpoint)->explain(Op::read, region, **mapping, {1, 64});
    EXPECT_EQ(way.path, same ? "kernel+cross_process" : "") << way.reason;
    if (!same) {
      EXPECT_NE(way.refused.at(1).reason.find("another process"), std::string::npos);
    }
  }
  channel_.same_user = false;
  address.proof[0] ^= std::byte{1};
  auto endpoint = us_.transport->connect(encode(address), channel_, soon);
  ASSERT_TRUE(endpoint.ok());
  EXPECT_EQ((*endpoint)->explain(Op::read, region, **mapping, {1, 64}).path, "");
}

TEST_F(LocalEndpointTest, KeysOfAnotherOwnerAreNotTakenFromThisPeer) {
  Half other{kPeer + 1};
  std::vector<std::byte> memory(kBytes);
  other.publish(memory, {.read = true, .write = true});
  const auto soon = base::Deadline::after(base::Clock::steady(), 10s);
  auto taken = us_.transport->import_key({other.key.bytes, other.key.fds, kPeer, true}, soon);
  EXPECT_EQ(taken.status().code(), Code::corrupt);
  flatbuffers::FlatBufferBuilder out;
  const auto key = schema::vector_of(out, other.key.bytes);
  out.Finish(schema::CreateOffer(out, key));
  EXPECT_EQ(say(Message::offer, finished(out), other.key.fds).code(), Code::corrupt);
  EXPECT_EQ(us_.transport->connect(other.transport->address(), channel_, soon).status().code(),
            Code::corrupt);
}

TEST_F(LocalEndpointTest, OffersAreOnceEachAndBoundedWhileTheyOpen) {
  const std::uint64_t writable = us_.publish(ours_, {.read = true, .write = true});
  const std::uint64_t theirs = offer();
  flatbuffers::FlatBufferBuilder again;
  again.Finish(schema::CreateOffer(again, schema::vector_of(again, peer_.key.bytes)));
  EXPECT_EQ(say(Message::offer, finished(again)).code(), Code::corrupt);
  // The thread that opens them stands still, as behind a driver that does.
  std::promise<void> go_on;
  us_.transport->off_the_lock([wait = go_on.get_future().share()] { wait.wait(); });
  Key key = *decode_key(peer_.key.bytes);
  Status status;
  std::size_t taken = 0;
  for (; taken < 1000 && status.ok(); ++taken) {
    ++key.id.serial;
    flatbuffers::FlatBufferBuilder out;
    out.Finish(schema::CreateOffer(out, schema::vector_of(out, encode(key))));
    status = say(Message::offer, finished(out));
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
    return (*made)->import_key({of.key.bytes, of.key.fds, 0, true}, soon);
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

TEST_F(LocalEndpointTest, AnswersLaterWhenTheChannelIsFull) {
  const std::uint64_t writable = us_.publish(ours_, {.read = true, .write = true});
  const std::uint64_t theirs = offer();
  channel_.full = true;
  ASSERT_TRUE(execute(true, theirs, writable, {0, 0, kBytes}).ok());
  const auto limit = base::Deadline::after(base::Clock::steady(), 50ms);
  while (!limit.passed()) endpoint_->progress(sink_);
  channel_.full = false;
  EXPECT_EQ(answer(), Code::ok);
  EXPECT_EQ(ours_, std::vector<std::byte>(kBytes, std::byte{2}));
}

TEST_F(LocalEndpointTest, WhatIsMalformedIsCorruptAndWhatIsUnknownUnsupported) {
  const std::vector<std::byte> garbage(64, std::byte{0xff});
  for (Message message : {Message::offer, Message::execute, Message::executed, Message::cancel,
                          Message::retract, Message::retracted}) {
    EXPECT_EQ(say(message, garbage).code(), Code::corrupt);
    EXPECT_EQ(say(message, {}).code(), Code::corrupt);
  }
  EXPECT_EQ(say(static_cast<Message>(999), garbage).code(), Code::unsupported);
  flatbuffers::FlatBufferBuilder out;
  out.Finish(schema::CreateExecuted(out, 5, 0, out.CreateString("")));
  EXPECT_TRUE(say(Message::executed, finished(out)).ok());  // late: the tally has told already
}

}  // namespace
}  // namespace linkspan::transport::local
