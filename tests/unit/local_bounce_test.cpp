// Tests copies by a bounce buffer: private memory of ours and of a peer that must copy its half.
#include "tests/support/local_endpoint.hpp"
#include "tests/support/no_memory.hpp"

namespace linkspan::transport::local {
namespace local_endpoint_test {

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

}  // namespace local_endpoint_test
}  // namespace linkspan::transport::local
