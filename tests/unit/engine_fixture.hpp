// tests/unit/engine_fixture.hpp - a transport that copies nothing, a Session whose peer is the
// test, and a PeerScheduler between them.
//
// Threads: a FakeEndpoint any thread; all else externally synchronised.
// Invariants: a FakeEndpoint completes a batch only when the test asks for it, unless it was made
// to complete each.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "engine/transfers/completion_queue.hpp"
#include "engine/transfers/peer_scheduler.hpp"
#include "memory/registry.hpp"
#include "tests/support/raw_peer.hpp"
#include "tests/support/take.hpp"
#include "tests/unit/control_fixture.hpp"

namespace linkspan::test {

/// Returns the bytes of a text.
inline std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}
/// Returns the text of bytes.
inline std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Counts the calls of Endpoints. Any thread.
struct EndpointCalls {
  std::atomic<std::uint64_t> posts{0}, cancels{0}, progress{0}, hints{0}, others{0};

  std::array<std::uint64_t, 5> all() const { return {posts, cancels, progress, hints, others}; }
};

class FakeEndpoint final : public transport::Endpoint {
 public:
  using When = transport::PollHint::When;
  struct Posted {
    std::uint64_t cookie = 0;
    Op op = Op::write;
    std::size_t blocks = 0;
    std::string notification;
    std::uint64_t notifications_before = 0;
    bool releases = false;    ///< It was asked for an event for the user's stream.
    std::size_t waiting = 0;  ///< Pairs that waited for the same pages.
  };

  /// `calls` outlives it and counts the calls of several.
  explicit FakeEndpoint(EndpointCalls& calls) : calls_(calls) {}

  // The test's:
  /// Sets how many batches may be in flight.
  void set_room(std::size_t room) {
    change([&] { room_ = room; });
  }
  /// Makes post() return that error.
  void refuse(const Status& why) {
    change([&] { refusal_ = why; });
  }
  /// Makes post() take that many further pairs with a batch.
  void join(std::size_t most) {
    change([&] { joins_ = most; });
  }
  /// Makes post() take notifications with the batches.
  void carry_notifications() {
    change([&] { carries_ = true; });
  }
  /// Makes each batch end in post(), if its caller knows that.
  void end_at_once() {
    change([&] { at_once_ = true; });
  }
  /// Makes each progress() complete all batches.
  void complete_each() {
    change([&] { completes_ = true; });
  }
  void set_hint(const transport::PollHint& hint) {
    change([&] { hint_ = hint; });
  }
  void set_drained(bool drained) {
    change([&] { drained_ = drained; });
  }
  void set_served(const std::vector<transport::Served>& served) {
    change([&] { served_ = served; });
  }
  /// Makes the next progress() deliver the Completion of a batch in flight.
  void complete(std::uint64_t cookie, const Status& status = {}, std::string_view path = "",
                const std::vector<Block>& unfinished = {}) {
    change([&] {
      EXPECT_EQ(std::erase(in_flight_, cookie), 1u) << "not in flight: " << cookie;
      due_.push_back({cookie, status, {.path = path}, unfinished});
    });
  }
  /// Completes the batches in flight.
  void complete_all(const Status& status = {}) {
    for (const std::uint64_t cookie : in_flight()) complete(cookie, status);
  }
  std::vector<std::uint64_t> in_flight() const { return copy(in_flight_); }
  std::vector<std::uint64_t> canceled() const { return copy(canceled_); }
  std::vector<Posted> posted() const { return copy(posted_); }
  std::vector<std::string> messages() const { return copy(messages_); }
  bool stopped_serving() const { return copy(stopped_serving_); }
  bool closed() const { return copy(closed_); }

  // Endpoint
  Result<transport::Posted> post(const transport::Batch& batch) override {
    ++calls_.posts;
    const base::MutexLock lock(mutex_);
    if (!refusal_.ok()) return refusal_;
    if (in_flight_.size() >= room_) return Status::no_resource();
    const auto* const blocks = std::get_if<std::span<const Block>>(&batch.shape);
    posted_.push_back({batch.cookie, batch.op, blocks == nullptr ? 0 : blocks->size(),
                       text_of(batch.notification), batch.notifications_before,
                       batch.streams.wants_event,
                       batch.more == nullptr ? 0 : batch.more->alike(~std::size_t{0})});
    const bool ends = at_once_ && batch.caller_copies;
    if (!ends) in_flight_.push_back(batch.cookie);
    return transport::Posted{.path = {.path = "fake"},
                             .joined = batch.more == nullptr ? 0 : batch.more->alike(joins_),
                             .notifies = carries_ && !batch.notification.empty(),
                             .ended = ends};
  }
  void cancel(std::uint64_t cookie) override {
    ++calls_.cancels;
    change([&] { canceled_.push_back(cookie); });
  }
  std::size_t progress(transport::CompletionSink& sink) override {
    ++calls_.progress;
    const base::MutexLock lock(mutex_);
    if (completes_)
      for (const std::uint64_t cookie : std::exchange(in_flight_, {})) due_.push_back({cookie, {}});
    const std::size_t count = due_.size();
    for (transport::Completion& each : std::exchange(due_, {})) sink.complete(std::move(each));
    return count;
  }
  transport::PollHint poll_hint() const override {
    ++calls_.hints;
    const base::MutexLock lock(mutex_);
    if (!due_.empty()) return {.when = When::now, .at = {}};
    return hint_;
  }
  Explanation explain(Op, const memory::Region&, const transport::Mapping&,
                      transport::BatchSummary) const override {
    return {.path = "fake+nothing", .executor = "here", .reason = "a test", .refused = {}};
  }
  std::string describe_paths() const override { return "a fake path"; }
  Status on_message(std::uint16_t, std::span<const std::byte> bytes, std::span<base::Fd>) override {
    change([&] { messages_.push_back(text_of(bytes)); });
    return {};
  }
  void stop_serving() override {
    ++calls_.others;
    change([&] { stopped_serving_ = true; });
  }
  std::vector<transport::Served> served() const override { return copy(served_); }
  void close() override {
    ++calls_.others;
    change([&] { closed_ = true; });
  }
  /// Completes what is in flight as disconnected.
  void peer_terminated() override {
    ++calls_.others;
    complete_all({Code::disconnected, Scope::peer, "the peer has ended"});
  }
  bool drained() const override {
    ++calls_.others;
    return copy(drained_);
  }

 private:
  template <class Act>
  void change(const Act& act) {
    const base::MutexLock lock(mutex_);
    act();
  }
  template <class Value>
  Value copy(const Value& value) const {
    const base::MutexLock lock(mutex_);
    return value;
  }

  EndpointCalls& calls_;
  mutable base::Mutex mutex_;
  std::size_t room_ = 1000;
  std::size_t joins_ = 0;
  Status refusal_;
  bool carries_ = false, completes_ = false, at_once_ = false, drained_ = true;
  bool stopped_serving_ = false, closed_ = false;
  transport::PollHint hint_;
  std::vector<std::uint64_t> in_flight_, canceled_;
  std::vector<transport::Completion> due_;
  std::vector<Posted> posted_;
  std::vector<std::string> messages_;
  std::vector<transport::Served> served_;
};

class FakeMapping final : public transport::Mapping {
 public:
  explicit FakeMapping(std::function<void()> at_end = {}) : at_end_(std::move(at_end)) {}
  FakeMapping(const FakeMapping&) = delete;
  FakeMapping& operator=(const FakeMapping&) = delete;
  ~FakeMapping() override {
    if (at_end_) at_end_();
  }
  std::uint64_t bytes() const noexcept override { return ~std::uint64_t{0}; }
  Permissions permissions() const noexcept override { return {.read = true, .write = true}; }
  bool alive() const noexcept override { return alive_; }
  void end_life() { alive_ = false; }

 private:
  std::function<void()> at_end_;
  bool alive_ = true;
};

/// Publishes any region, and has no fds.
class FakeTransport final : public transport::Transport {
 public:
  static constexpr std::uint64_t kBatchBytes = 64;

  explicit FakeTransport(std::string name = "fake", bool leaves_host = false)
      : name_(std::move(name)),
        capabilities_{.initiator_reads = true,
                      .leaves_host = leaves_host,
                      .max_batch_bytes = kBatchBytes,
                      .max_batch_blocks = 1,
                      .max_batch_pages = 1,
                      .max_inflight = 1} {}

  std::string_view name() const noexcept override { return name_; }
  const transport::Capabilities& capabilities() const noexcept override { return capabilities_; }
  Result<memory::PublishedKey> publish(const memory::Region&) override {
    return memory::PublishedKey{.bytes = bytes_of(name_), .fds = {}};
  }
  Status retract(const memory::Region&, bool) override { return retracted; }
  Status forget(const memory::Region&) override { return retracted; }
  Result<std::unique_ptr<transport::Mapping>> import_key(transport::RemoteKey,
                                                         base::Deadline) override {
    return std::unique_ptr<transport::Mapping>(std::make_unique<FakeMapping>());
  }
  std::vector<transport::CopyCount> copies() const override { return {}; }
  std::vector<std::byte> address() const override { return bytes_of(name_); }
  Result<std::unique_ptr<transport::Endpoint>> connect(std::span<const std::byte>,
                                                       transport::Channel&,
                                                       base::Deadline) override {
    return std::unique_ptr<transport::Endpoint>(std::make_unique<FakeEndpoint>(calls));
  }

  Status retracted;  ///< What retract() and forget() return.
  EndpointCalls calls;

 private:
  const std::string name_;
  const transport::Capabilities capabilities_;
};

/// A Session whose peer is the test. It is not started unless the test does, so a notification is a
/// frame.
class TestSession final {
 public:
  /// A peer of this host that the test reads.
  explicit TestSession(std::uint64_t id) : TestSession(id, socket_pair()) {}
  /// The socket of the Session, and that of its peer; both may be empty.
  TestSession(std::uint64_t id, std::pair<base::Fd, base::Fd> sockets)
      : session_(std::make_shared<control::Session>(id, false, std::move(sockets.first), us_,
                                                    events_, writer_, log_)),
        peer(std::move(sockets.second)) {}
  /// Returns a peer without a socket, which costs no descriptor.
  static std::unique_ptr<TestSession> without_socket(std::uint64_t id) {
    return std::make_unique<TestSession>(id, std::pair<base::Fd, base::Fd>());
  }

  const std::shared_ptr<control::Session>& session() const { return session_; }
  /// Fills the socket and the queue of the Session: frames and notifications find no room.
  void fill() {
    const std::vector<std::byte> large(65536);
    for (const std::span<const std::byte> payload : {std::span(large), std::span(large).first(0)})
      while (session_->send(control::FrameOp::collect, 0, payload).ok()) {
      }
  }
  /// Reads all frames that fill() has sent.
  void drain() {
    do {
      while (next().has_value()) {
      }
    } while (session_->socket().flush().ok() && session_->socket().wants_write());
    while (next().has_value()) {
    }
  }
  /// Returns the next frame that has come.
  std::optional<base::Frame> next() {
    auto frame = peer.receive();
    if (!frame.ok()) return std::nullopt;
    return *std::move(frame);
  }
  /// Returns "" if no frame has come, or frames of this op.
  std::string next_notification() {
    const auto frame = next();
    if (!frame) return "";
    EXPECT_EQ(static_cast<control::FrameOp>(frame->header.op), control::FrameOp::notify);
    return text_of(take(control::decode_notify(frame->payload)));
  }

 private:
  static std::pair<base::Fd, base::Fd> socket_pair() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()), 0);
    return {base::Fd(ends[0]), base::Fd(ends[1])};
  }
  struct NoWriter final : control::SessionWriter {
    void write_when_ready(std::uint64_t) override {}
  };

  const base::Log log_{base::Level::off, base::stderr_sink()};
  const control::Identity us_{.engine = "us", .incarnation = 11};
  Quiet events_;
  NoWriter writer_;
  std::shared_ptr<control::Session> session_;  // also the engine's

 public:
  base::FdChannel peer;  ///< The other end.
};

/// Counts the calls. Any thread.
class RecordingEvents final : public engine::SchedulerEvents {
 public:
  std::uint64_t new_transfer_id() noexcept override { return ++last_id_; }
  void activate(engine::PeerScheduler& peer) noexcept override {
    peer.active = true;
    ++activated;
  }
  void on_quiet() noexcept override { ++quiet; }

  std::atomic<std::uint64_t> activated{0}, quiet{0};

 private:
  std::atomic<std::uint64_t> last_id_{0};
};

/// Registered memory of this process and a region of a peer.
class FakeMemory {
 public:
  explicit FakeMemory(memory::Registry& registry)
      : memory_(1 << 16),
        local(take(
            registry.add(memory_.data(), memory_.size(), {.read = true, .write = true}, false))) {}

  /// Returns a region of the peer for `transports` transports. `at_end` is called when it ends.
  static std::shared_ptr<engine::ImportedRegion> remote(std::function<void()> at_end = {},
                                                        std::size_t transports = 1) {
    auto region = std::make_shared<engine::ImportedRegion>();
    region->name = "theirs";
    region->bytes = 1 << 16;
    for (std::size_t i = 0; i < transports; ++i)
      region->mappings.push_back(std::make_unique<FakeMapping>(std::exchange(at_end, {})));
    return region;
  }
  void* data() { return memory_.data(); }

 private:
  std::vector<std::byte> memory_;

 public:
  const std::shared_ptr<const memory::Registration> local;  // also the registry's
};

/// A PeerScheduler with one FakeEndpoint. `events` outlives it.
class FakePeer {
 public:
  FakePeer(std::unique_ptr<TestSession> session, engine::SchedulerEvents& events,
           const engine::Transports& transports, const base::Log& log)
      : session_(std::move(session)),
        scheduler(
            std::make_shared<engine::PeerScheduler>(session_->session(), events, transports, log)) {
    auto made = std::make_unique<FakeEndpoint>(fake(transports).calls);
    endpoint = made.get();
    scheduler->add_endpoint(0, nullptr, std::move(made));
  }
  static FakeTransport& fake(const engine::Transports& transports) {
    return dynamic_cast<FakeTransport&>(*transports.front());
  }
  TestSession& session() { return *session_; }

 private:
  std::unique_ptr<TestSession> session_;

 public:
  const std::shared_ptr<engine::PeerScheduler> scheduler;  // also the PeerTable's
  FakeEndpoint* endpoint;                                  // the scheduler's
};

/// Makes what a PeerScheduler needs beside its peer.
class EngineFixture : public ::testing::Test {
 protected:
  using Transfer = std::shared_ptr<engine::TransferState>;  // also the scheduler's

  EngineFixture() { transports_.push_back(std::make_unique<FakeTransport>()); }

  FakeTransport& transport() { return FakePeer::fake(transports_); }
  FakePeer make_peer(engine::SchedulerEvents& events, std::uint64_t id = 1) {
    return {std::make_unique<TestSession>(id), events, transports_, log_};
  }
  /// Returns a write of so many batches, as the submission hands it to the scheduler.
  Transfer make_transfer(std::size_t batches = 1) {
    auto transfer = std::make_shared<engine::TransferState>();
    transfer->peer = 1;
    transfer->local = memory_.local;
    transfer->remote = FakeMemory::remote();
    transfer->bytes = batches * FakeTransport::kBatchBytes;
    transfer->batches.own =
        engine::make_plan({{0, 0, transfer->bytes}}, transport().capabilities());
    transfer->batches.count = transfer->batches.own.batches;
    transfer->ending.submitted = base::Clock::steady().now();
    transfer->ending.deadline = base::Time::max();
    EXPECT_EQ(transfer->batches.count, batches);
    EXPECT_TRUE(transfer->local->acquire());
    return transfer;
  }
  /// Submits as the submission does, which keeps nothing of a transfer that was refused.
  static Status submit(FakePeer& peer, const Transfer& transfer) {
    Status status = peer.scheduler->submit(transfer);
    if (!status.ok()) transfer->local->release();
    return status;
  }
  static base::Time now() { return base::Clock::steady().now(); }
  static std::string end_of(const engine::TransferState& transfer) {
    return transfer.quiet ? name_of(transfer.end.code()) : "not quiet";
  }

  const base::Log log_{base::Level::off, base::stderr_sink()};
  engine::Transports transports_;
  memory::Registry registry_{1, nullptr};
  FakeMemory memory_{registry_};
};

}  // namespace linkspan::test
