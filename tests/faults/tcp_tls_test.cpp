// Tests two Engines over TCP with an attacker between them that reads and changes bytes.
#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "base/mutex.hpp"
#include "control/socket_address.hpp"
#include "tests/conformance/wire_pair.hpp"
#include "tests/support/delay_line.hpp"

namespace linkspan::test {
namespace tcp_tls_test {

using namespace std::chrono_literals;

constexpr std::uint64_t kBytes = (1u << 20) + 77;
constexpr Block kAll{0, 0, kBytes};

class TcpTls : public ::testing::Test {
 protected:
  void SetUp() override {
    const int file = ::mkstemp(secret_.data());  // 0600
    ASSERT_GE(file, 0);
    ASSERT_EQ(::write(file, "a secret of the tests", 21), 21);
    ::close(file);
  }
  void TearDown() override { ::unlink(secret_.c_str()); }
  Result<Engine> open(const std::string& name, bool tls) const {
    EngineOptions options = engine_options(name);
    options.use_gpu = false;
    options.secret_file = secret_;
    options.security = tls ? Security::encrypted : Security::authenticated;
    return Engine::open(options);
  }
  /// Connects `near_` and `far_` through the delay line.
  void meet(bool tls) {
    far_ = take(open("far", tls));
    near_ = take(open("near", tls));
    there_ = Held::make(*far_, {.kind = "host", .bytes = kBytes});
    here_ = Held::make(*near_, {.kind = "host", .bytes = kBytes});
    ASSERT_TRUE(far_->publish("there", there_.region).ok());
    ASSERT_TRUE(far_->listen("tcp:127.0.0.1:0").ok());
    const auto address = take(control::parse_address(far_->address(), {}));
    line_ = take(DelayLine::start(take(net::resolve("127.0.0.1", 0)).front(),
                                  take(control::resolve(address, false)).front(), 0ms,
                                  [this](std::span<char> bytes) { see(bytes); }));
    peer_ = take(near_->connect("tcp:" + line_->address().to_string()));
    remote_ = take(peer_->lookup("there"));
  }
  void see(std::span<char> bytes) LINKSPAN_EXCLUDES(mutex_) {
    const base::MutexLock lock(mutex_);
    seen_.append(bytes.data(), bytes.size());
    if (changes_ && bytes.size() > 8192) bytes[bytes.size() / 2] ^= 1;
  }
  /// Pieces of what is here that went by.
  std::size_t shown() LINKSPAN_EXCLUDES(mutex_) {
    const base::MutexLock lock(mutex_);
    std::size_t count = 0;
    for (std::uint64_t at = 0; at + 16 < kBytes; at += 65536)
      count +=
          seen_.find(std::string(reinterpret_cast<char*>(here_.at(at)), 16)) != std::string::npos
              ? 1u
              : 0u;
    return count;
  }
  Status write(const TransferOptions& options = by_wire(kTcp)) {
    return finished(move(*peer_, Op::write, here_.region, *remote_, kAll, options));
  }

  std::string secret_ = "/tmp/linkspan-secret-XXXXXX";
  base::Mutex mutex_;
  std::string seen_ LINKSPAN_GUARDED_BY(mutex_);
  std::atomic<bool> changes_{false};
  Held here_, there_;  // outlive the Engines
  std::unique_ptr<DelayLine> line_;
  std::optional<Engine> far_, near_;
  std::optional<Peer> peer_;
  std::optional<RemoteRegion> remote_;
};

TEST_F(TcpTls, ShowsNothingToWhoListensOnTheWay) {
  meet(true);
  here_.fill(3);
  there_.fill(2);
  TransferOptions options = by_wire(kTcp);
  constexpr std::string_view kBell = "a notification that nobody else is to read";
  options.notification = std::as_bytes(std::span(kBell));
  ASSERT_EQ(write(options).to_string(), "ok");
  EXPECT_EQ(there_.difference(2, {{0, 3, 0, kBytes}}), "");
  ASSERT_TRUE(peer_->notify(options.notification).ok());
  EXPECT_FALSE(far_->notifications(5s).empty());
  EXPECT_EQ(shown(), 0u);
  const base::MutexLock lock(mutex_);
  EXPECT_GT(seen_.size(), kBytes);
  EXPECT_EQ(seen_.find(kBell), std::string::npos);
  EXPECT_EQ(seen_.find("there"), std::string::npos);
  const auto why = take(peer_->explain(Op::write, here_.region, *remote_, 1, kBytes));
  EXPECT_EQ(why.path, "tcp");
  EXPECT_NE(why.reason.find("TLS"), std::string::npos) << why.reason;
}

TEST_F(TcpTls, WithoutItAllIsShown) {
  meet(false);
  here_.fill(3);
  ASSERT_EQ(write().to_string(), "ok");
  EXPECT_GT(shown(), 10u);
}

/// No byte of what was changed lands.
TEST_F(TcpTls, WhatIsChangedOnTheWayEndsThePeer) {
  meet(true);
  here_.fill(3);
  ASSERT_EQ(write().to_string(), "ok");
  here_.fill(4);
  there_.fill(5);
  const std::vector<std::byte> old(there_.at(0), there_.at(kBytes));
  changes_ = true;
  const Status end = write(by_wire(kTcp, 10s));
  // The side that detects it sends an alert, which may arrive before the end.
  EXPECT_TRUE(end.code() == Code::disconnected || end.code() == Code::corrupt) << end.to_string();
  peer_.reset();
  ASSERT_TRUE(near_->close(5s).ok());
  ASSERT_TRUE(far_->close(5s).ok());
  for (std::uint64_t i = 0; i < kBytes; ++i)
    ASSERT_TRUE(*there_.at(i) == old[i] || *there_.at(i) == *here_.at(i)) << i;
}

}  // namespace tcp_tls_test
}  // namespace linkspan::test
