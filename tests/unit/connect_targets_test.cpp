#include "control/connect_targets.hpp"

#include <gtest/gtest.h>

#include "tests/support/take.hpp"

namespace linkspan::control {
namespace connect_targets_test {

using namespace std::chrono_literals;
using test::take;

constexpr const char *kUnix = "unix:/a#00000000000000aa",
                     *kFirst = "tcp:127.0.0.1:1#00000000000000aa",
                     *kSecond = "tcp:127.0.0.2:1#00000000000000aa",
                     *kOther = "tcp:127.0.0.3:1#00000000000000bb";

base::Deadline later() { return base::Deadline::in(1h); }
base::Deadline over() { return base::Deadline::in(Duration::zero()); }
Status status(Code code, std::string what = "why") { return {code, Scope::peer, std::move(what)}; }

class Targets : public ::testing::Test {
 protected:
  ConnectTargets& of(std::initializer_list<const char*> list) {
    std::vector<SocketAddress> addresses;
    for (const char* each : list) addresses.push_back(take(parse_address(each, "/folder")));
    return made_.emplace(addresses, false, later());
  }
  /// Fails what is next. For TCP `answered` is the host that did.
  void fail(Code code, const char* answered = nullptr) {
    ASSERT_NE(made_->next(), nullptr);
    std::optional<net::TcpAddress> host;
    for (const auto& each : made_->next()->hosts)
      if (answered != nullptr && each.host() == answered) host = each;
    EXPECT_EQ(host.has_value(), answered != nullptr);
    made_->fail(status(code), host);
  }
  std::string next() const {
    return made_->next() == nullptr ? "" : made_->next()->address.to_string();
  }
  std::size_t hosts() const { return made_->next() == nullptr ? 0 : made_->next()->hosts.size(); }

  std::optional<ConnectTargets> made_;
};

TEST_F(Targets, AreUnixSocketsFirst_ThenTheTcpAddressesOfEachEngineTogether) {
  const auto& targets = of({kFirst, kOther, kUnix, kSecond});
  EXPECT_EQ(next(), kUnix);
  EXPECT_TRUE(targets.has_more());
  fail(Code::not_found);
  EXPECT_EQ(next(), kFirst);
  EXPECT_EQ(hosts(), 2u);
  fail(Code::unreachable);
  EXPECT_EQ(next(), kOther);
  EXPECT_FALSE(targets.has_more());
  fail(Code::unreachable);
  EXPECT_EQ(next(), "");
  EXPECT_EQ(targets.outcome(over()), std::nullopt) << "each is worth a retry";
}

TEST_F(Targets, OmitTcp_WhileTheUnixSocketIsFull) {
  auto& targets = of({kUnix, kFirst});
  fail(Code::no_resource);
  EXPECT_EQ(next(), "");
  EXPECT_EQ(targets.outcome(later()), std::nullopt);
  EXPECT_EQ(targets.last().code(), Code::no_resource);
  targets.begin_pass();
  EXPECT_EQ(next(), kUnix);
}

TEST_F(Targets, LoseTheHostThatRefused_AndTheTargetWithItsLast) {
  auto& targets = of({kFirst, kSecond});
  EXPECT_EQ(hosts(), 2u);
  fail(Code::permission_denied, "127.0.0.2");
  EXPECT_EQ(hosts(), 1u);
  EXPECT_EQ(next(), kFirst) << "tried again in the same pass";
  fail(Code::disconnected, "127.0.0.1");
  EXPECT_EQ(next(), "");
  EXPECT_EQ(targets.outcome(later()), std::nullopt) << "the last host may be restarting";
  targets.begin_pass();
  fail(Code::timed_out, "127.0.0.1");
  const Status outcome = *targets.outcome(later());
  EXPECT_EQ(outcome.code(), Code::permission_denied) << "the first refusal";
  EXPECT_NE(outcome.what().find("127.0.0.2"), std::string::npos) << outcome.what();
  EXPECT_NE(outcome.what().find("127.0.0.1"), std::string::npos) << outcome.what();
}

TEST_F(Targets, LoseAHostThatCloses_WhileThereAreOthers) {
  of({kFirst, kSecond});
  fail(Code::disconnected, "127.0.0.1");
  EXPECT_EQ(hosts(), 1u);
  EXPECT_NE(next(), "");
}

TEST_F(Targets, EndAtOnce_WhereTcpWasRefusedAndTheSocketIsNotThere) {
  auto& targets = of({kUnix, kFirst});
  fail(Code::not_found);
  fail(Code::permission_denied, "127.0.0.1");
  EXPECT_EQ(targets.outcome(later()), std::nullopt) << "the socket was tried before";
  targets.begin_pass();
  fail(Code::not_found);
  EXPECT_EQ(targets.outcome(later())->code(), Code::permission_denied);
}

TEST_F(Targets, EndWithTheRefusal_AtTheDeadline) {
  auto& targets = of({kUnix, kFirst});
  fail(Code::permission_denied);
  fail(Code::unreachable);
  EXPECT_EQ(targets.outcome(later()), std::nullopt);
  const Status outcome = *targets.outcome(over());
  EXPECT_EQ(outcome.code(), Code::permission_denied);
  EXPECT_NE(outcome.what().find(kFirst), std::string::npos) << outcome.what();
}

TEST_F(Targets, CountAnAddressThatIsNotResolvedAsRefused) {
  const auto& targets = of({"tcp:192.0.2.1:1", kUnix});
  EXPECT_EQ(next(), kUnix);
  EXPECT_FALSE(targets.has_tcp());
  fail(Code::not_found);
  const Status outcome = *targets.outcome(later());
  EXPECT_EQ(outcome.code(), Code::permission_denied);
  EXPECT_NE(outcome.what().find("beyond loopback"), std::string::npos) << outcome.what();
}

TEST_F(Targets, PassOnTheStatus_OfASingleAddress) {
  auto& targets = of({kUnix});
  fail(Code::no_resource);
  EXPECT_EQ(targets.outcome(later()), std::nullopt);
  targets.begin_pass();
  made_->fail(status(Code::timed_out), {});
  EXPECT_EQ(targets.last().code(), Code::no_resource) << "it was full until the deadline";
  of({kUnix});
  fail(Code::permission_denied);
  EXPECT_EQ(made_->outcome(later())->what(), "why");
}

}  // namespace connect_targets_test
}  // namespace linkspan::control
