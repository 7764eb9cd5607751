// Tests how far a Session has ended: which ends are reported, in which order, and what a process
// that may still copy delays.
#include "control/session_end.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <new>
#include <string>
#include <vector>

#include "tests/support/tcp_pair.hpp"
#include "tests/unit/engine_fixture.hpp"

namespace linkspan::control {
namespace session_end_test {

Status reason(const char* why = "a test") { return {Code::corrupt, Scope::peer, why}; }

/// Records the reports of ends.
class RecordedEnds final : public SessionEvents {
 public:
  std::vector<TransportAddress> transport_addresses(bool) override { return {}; }
  Status on_established(const std::shared_ptr<Session>&) override { return {}; }
  void on_up(Session&) override {}
  void on_disconnected(Session&) override { report("disconnected"); }
  void on_terminated(Session&) override { report("terminated"); }
  void on_transport_message(Session&, TransportMessage, std::span<base::Fd>) override {}
  void on_data_connection(Session&, const std::string&,
                          Result<base::AuthenticatedSocket>) override {}
  Result<ExportedRegion> on_import_request(Session&, std::string_view, std::uint64_t) override {
    return reason();
  }
  void on_set_request(Session&, std::uint64_t, AskSet) override {}
  void on_set_reply(Session&, std::uint64_t, memory::PublishedSet) override {}
  Result<ExportedRegion> on_offer_import_request(Session&, std::uint64_t) override {
    return reason();
  }
  Status on_message_frame(Session&, base::Frame&) override { return {}; }
  void on_import_reply(Session&, std::uint64_t, Result<ExportedRegion>) override {}
  void on_notification(Session&, std::vector<std::byte>) override {}
  void on_collect_request(Session&) override {}
  Result<std::string> handle_query(IntrospectionOp) override { return reason(); }

  int failures = 0;  ///< How many of the next reports have no memory.
  std::vector<std::string> seen;

 private:
  void report(const char* what) {
    if (failures != 0) {
      --failures;
      throw std::bad_alloc();
    }
    seen.emplace_back(what);
  }
};

using Seen = std::vector<std::string>;

class SessionEndTest : public ::testing::Test {
 protected:
  /// Does the handshake of a Session.
  static void establish(test::TestSession& peer) {
    test::must(peer.session()->start());
    test::greet_raw(peer.peer);
    for (const auto limit = base::Deadline::in(std::chrono::seconds(10));
         !peer.session()->is_up() && !limit.passed();)
      peer.session()->on_readable();
    ASSERT_TRUE(peer.session()->is_up());
  }
  void report() { end_.report(*session_->session(), events_); }
  void meet_local() {
    session_ = std::make_unique<test::TestSession>(1);
    establish(*session_);
  }
  void meet_remote() {
    session_ = std::make_unique<test::TestSession>(1, test::tcp_pair());
    establish(*session_);
    ASSERT_TRUE(session_->session()->is_remote());
  }

  std::unique_ptr<test::TestSession> session_;
  RecordedEnds events_;
  SessionEnd end_;
};

TEST_F(SessionEndTest, ReportsNothing_WhileItIsConnected) {
  meet_remote();
  report();
  EXPECT_TRUE(events_.seen.empty());
  EXPECT_FALSE(end_.is_disconnected() || end_.is_terminated());
  EXPECT_TRUE(end_.failure().ok());
}

TEST_F(SessionEndTest, ReportsBothEndsOnce_WhenARemotePeerIsDisconnected) {
  meet_remote();
  EXPECT_TRUE(end_.disconnect(reason()));
  EXPECT_TRUE(events_.seen.empty()) << "the caller reports";
  for (int again = 0; again < 2; ++again) report();
  EXPECT_EQ(events_.seen, (Seen{"disconnected", "terminated"}));
  EXPECT_TRUE(end_.is_terminated());
}

/// A process that has only closed its socket may still write to our memory.
TEST_F(SessionEndTest, WaitsForTheEndOfTheProcess_WhenALocalPeerIsDisconnected) {
  meet_local();
  end_.disconnect(reason());
  for (int again = 0; again < 2; ++again) report();
  EXPECT_EQ(events_.seen, (Seen{"disconnected"}));
  EXPECT_FALSE(end_.is_terminated());
  end_.end_process();
  report();
  EXPECT_EQ(events_.seen, (Seen{"disconnected", "terminated"}));
}

/// The process may have forked a child that has the socket.
TEST_F(SessionEndTest, WaitsForTheEndOfTheSocket_WhenTheProcessHasEnded) {
  meet_local();
  end_.end_process();
  report();
  EXPECT_TRUE(events_.seen.empty());
  end_.disconnect(reason());
  report();
  EXPECT_EQ(events_.seen, (Seen{"disconnected", "terminated"}));
}

TEST_F(SessionEndTest, WaitsForNoProcess_WhenTheLocalPeerHasSaidGoodbye) {
  meet_local();
  end_.receive_goodbye();
  report();
  EXPECT_TRUE(events_.seen.empty()) << "its socket is open";
  end_.disconnect(reason());
  report();
  EXPECT_EQ(events_.seen, (Seen{"disconnected", "terminated"}));
}

TEST_F(SessionEndTest, ReportsNothingButIsTerminated_WhenThePeerWasNeverEstablished) {
  session_ = std::make_unique<test::TestSession>(1);
  end_.disconnect(reason());
  report();
  EXPECT_TRUE(events_.seen.empty());
  EXPECT_TRUE(end_.is_terminated());
}

TEST_F(SessionEndTest, KeepsTheFirstReason) {
  EXPECT_TRUE(end_.disconnect(reason("the first")));
  EXPECT_FALSE(end_.disconnect(reason("the second")));
  EXPECT_EQ(end_.failure().what(), "the first");
}

TEST_F(SessionEndTest, ReportsNothingAnyMore_WhenItWasDropped) {
  meet_remote();
  EXPECT_TRUE(end_.drop());
  EXPECT_TRUE(end_.is_disconnected());
  EXPECT_FALSE(end_.drop());
  EXPECT_FALSE(end_.disconnect(reason()));
  end_.end_process();
  report();
  EXPECT_TRUE(events_.seen.empty());
  EXPECT_FALSE(end_.is_terminated());
}

TEST_F(SessionEndTest, OwesAGoodbye_UntilItIsSentOrDropped) {
  EXPECT_FALSE(end_.owes_goodbye());
  end_.receive_goodbye();
  EXPECT_TRUE(end_.received_goodbye());
  EXPECT_TRUE(end_.owes_goodbye());
  EXPECT_FALSE(end_.sent_goodbye());
  EXPECT_TRUE(end_.begin_goodbye());
  EXPECT_FALSE(end_.begin_goodbye()) << "it is sent once";
  EXPECT_TRUE(end_.sent_goodbye());
  EXPECT_FALSE(end_.owes_goodbye());

  SessionEnd dropped;
  dropped.receive_goodbye();
  (void)dropped.drop();
  EXPECT_FALSE(dropped.owes_goodbye());
}

TEST_F(SessionEndTest, ReportsTheFirstEndOnce_WhenMemoryWasExhaustedBefore) {
  meet_remote();
  end_.disconnect(reason());
  events_.failures = 2;
  for (int again = 0; again < 2; ++again) EXPECT_THROW(report(), std::bad_alloc);
  EXPECT_TRUE(events_.seen.empty());
  EXPECT_FALSE(end_.is_terminated());
  for (int again = 0; again < 2; ++again) report();
  EXPECT_EQ(events_.seen, (Seen{"disconnected", "terminated"}));
}

/// A local peer, because there the two ends are reported by two calls.
TEST_F(SessionEndTest, ReportsTheSecondEndOnce_WhenMemoryWasExhaustedBefore) {
  meet_local();
  end_.disconnect(reason());
  report();
  end_.end_process();
  events_.failures = 1;
  EXPECT_THROW(report(), std::bad_alloc);
  EXPECT_FALSE(end_.is_terminated());
  for (int again = 0; again < 2; ++again) report();
  EXPECT_EQ(events_.seen, (Seen{"disconnected", "terminated"}));
}

}  // namespace session_end_test
}  // namespace linkspan::control
