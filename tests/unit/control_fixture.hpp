// tests/unit/control_fixture.hpp - a Control alone, before a Listener that has nothing to say.
//
// Threads: externally synchronised; what a Quiet has seen, any thread.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <filesystem>
#include <memory>
#include <new>
#include <optional>
#include <string>

#include "base/mutex.hpp"
#include "control/control_plane.hpp"
#include "tests/support/raw_peer.hpp"
#include "tests/support/take.hpp"

namespace linkspan::test {

/// An Engine that has nothing to say, and remembers its last peer.
class Quiet final : public control::SessionEvents {
 public:
  using Session = control::Session;
  using ExportedRegion = control::ExportedRegion;

  std::vector<control::TransportAddress> transport_addresses(bool) override { return {}; }
  Status on_established(const std::shared_ptr<Session>& session) override {
    const base::MutexLock lock(mutex_);
    last_ = session;
    gone_ = false;
    return {};
  }
  void on_up(Session&) override {}
  void on_disconnected(Session&) override {}
  void on_terminated(Session& session) override {
    const base::MutexLock lock(mutex_);
    if (&session != last_.get()) return;
    why_ = session.failure();
    gone_ = true;
    changed_.notify_all();
  }
  void on_transport_message(Session&, control::TransportMessage, std::span<base::Fd>) override {}
  void on_data_connection(Session& session, const std::string& transport,
                          Result<base::AuthenticatedSocket> socket) override {
    const base::MutexLock lock(mutex_);
    data_connections_.push_back({session.id(), transport, std::move(socket)});
    changed_.notify_all();
  }
  /// Answers an import. Memory is exhausted for a region of the name "no memory".
  Result<ExportedRegion> on_import_request(Session&, std::string_view name,
                                           std::uint64_t) override {
    if (name == "no memory") throw std::bad_alloc();
    const base::MutexLock lock(mutex_);
    const auto limit = base::Deadline::after(base::Clock::steady(), std::chrono::seconds(10));
    held_ = holding_;
    changed_.notify_all();
    while (holding_ && !limit.passed()) changed_.wait(mutex_, limit);
    held_ = false;
    return nothing();
  }
  void on_set_request(Session&, std::uint64_t, control::AskSet) override {}
  void on_set_reply(Session&, std::uint64_t, memory::PublishedSet) override {}
  Result<ExportedRegion> on_offer_import_request(Session&, std::uint64_t) override {
    return nothing();
  }
  Status on_message_frame(Session&, base::Frame&) override { return {}; }
  void on_import_reply(Session&, std::uint64_t, Result<ExportedRegion>) override {}
  void on_notification(Session&, std::vector<std::byte>) override {}
  void on_collect_request(Session&) override {}
  Result<std::string> handle_query(control::IntrospectionOp) override { return nothing(); }

  std::shared_ptr<Session> last() {
    const base::MutexLock lock(mutex_);
    return last_;
  }
  struct Stream {
    std::uint64_t session;  ///< the session's id here
    std::string transport;
    Result<base::AuthenticatedSocket> socket;
  };
  /// Returns the next data connection, or nullopt after `time`.
  std::optional<Stream> next_stream(Duration time) {
    const base::MutexLock lock(mutex_);
    const auto limit = base::Deadline::after(base::Clock::steady(), time);
    while (data_connections_.empty() && !limit.passed()) changed_.wait(mutex_, limit);
    if (data_connections_.empty()) return std::nullopt;
    Stream next = std::move(data_connections_.front());
    data_connections_.pop_front();
    return next;
  }
  /// Blocks the Control thread in the next import that a peer requests, until let_go().
  void hold() {
    const base::MutexLock lock(mutex_);
    holding_ = true;
  }
  /// Waits until the Control thread is blocked. Returns false after 10 s.
  bool wait_until_held() {
    const base::MutexLock lock(mutex_);
    const auto limit = base::Deadline::after(base::Clock::steady(), std::chrono::seconds(10));
    while (!held_ && !limit.passed()) changed_.wait(mutex_, limit);
    return held_;
  }
  void let_go() {
    const base::MutexLock lock(mutex_);
    holding_ = false;
    changed_.notify_all();
  }
  /// Returns the reason why the last peer is gone, or OK if it is not gone within `time`.
  Status wait_for_the_end(Duration time) {
    const base::MutexLock lock(mutex_);
    const auto limit = base::Deadline::after(base::Clock::steady(), time);
    while (!gone_ && !limit.passed()) changed_.wait(mutex_, limit);
    return gone_ ? why_ : Status();
  }

 private:
  static Status nothing() { return {Code::not_found, Scope::request, "nothing"}; }

  base::Mutex mutex_;
  base::Condition changed_;
  std::deque<Stream> data_connections_ LINKSPAN_GUARDED_BY(mutex_);
  std::shared_ptr<Session> last_ LINKSPAN_GUARDED_BY(mutex_);  // also Control's
  Status why_ LINKSPAN_GUARDED_BY(mutex_);
  bool gone_ LINKSPAN_GUARDED_BY(mutex_) = false;
  bool holding_ LINKSPAN_GUARDED_BY(mutex_) = false, held_ LINKSPAN_GUARDED_BY(mutex_) = false;
};

class ControlFixture : public ::testing::Test {
 protected:
  ControlFixture() = default;
  ControlFixture(const ControlFixture&) = delete;
  ControlFixture& operator=(const ControlFixture&) = delete;
  ~ControlFixture() override {
    if (client_) client_->close(soon());
    if (server_) server_->close(soon());
  }
  void SetUp() override {
    char name[] = "/tmp/linkspan-test-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static base::Deadline soon() {
    return base::Deadline::after(base::Clock::steady(), std::chrono::seconds(10));
  }
  void serve(bool tcp, const control::PeerLimits& limits = {}) {
    if (server_) server_->close(soon());
    us_.limits = limits;
    server_ = take(control::ControlPlane::open(us_, quiet_, log_));
    at_ = take(server_->listen(
        take(control::parse_address(tcp ? "tcp:127.0.0.1:0" : "unix:" + folder_ + "/s", {}))));
  }
  base::FdChannel connect() const { return connect_raw(at_.to_string()); }
  /// Returns the answer of a server that has not closed the connection.
  static Code answer(base::FdChannel& channel) {
    send_raw(channel, control::FrameOp::import, control::encode_import("x"));
    const auto said = next_raw(channel);
    return said ? control::decode_error(said->payload).code() : Code::disconnected;
  }

  std::string folder_;
  control::SocketAddress at_;
  const base::Log log_{base::Level::off, base::stderr_sink()};
  Quiet quiet_;
  control::Identity us_{.engine = "server", .incarnation = 11};
  std::unique_ptr<control::ControlPlane> server_;
  Quiet theirs_;
  control::Identity other_{.engine = "client", .incarnation = 12};
  std::unique_ptr<control::ControlPlane> client_;  // a test's
};

}  // namespace linkspan::test
