// tests/support/local_endpoint.hpp - the local transports of two Engines in one process, and the
// endpoint of the first, whose peer is the test.
#pragma once

#include <gtest/gtest.h>

#include <unistd.h>

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/schema/local_generated.h"
#include "transport/local/endpoint.hpp"

namespace linkspan::transport::local {
namespace local_endpoint_test {

using namespace std::chrono_literals;

inline constexpr std::uint64_t kUs = 11, kPeer = 77;
inline constexpr std::uint64_t kBytes = 8192;

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
  explicit Half(std::uint64_t incarnation, std::size_t max_imports = kMaxImports)
      : registry(incarnation, nullptr) {
    auto made = LocalTransport::create(
        {.registry = &registry, .incarnation = incarnation, .max_imports = max_imports});
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

}  // namespace local_endpoint_test
}  // namespace linkspan::transport::local
