// Tests Engine::close() with peers that do not answer.
#include <atomic>

#include "tests/hosts/hosts.hpp"

namespace linkspan::test {
namespace close_test {

constexpr std::uint64_t kBytes = 8u << 20;

class HostClose : public OnHosts {
 protected:
  void SetUp() override {
    EngineOptions options = engine_options("near");
    options.log = [this](LogLevel, std::string_view text) {
      if (text.find("is dropped") != std::string_view::npos) ++dropped_;
    };
    join(Cable::slow, std::move(options));
  }
  /// Checks that close() returns long before its 10 s are over.
  void expect_to_close() {
    const base::Time begin = base::Clock::steady().now();
    EXPECT_EQ(engine().close(10s).to_string(), "ok") << engine().dump();
    EXPECT_LT(base::Clock::steady().now() - begin, 8s);
  }
  std::atomic<int> dropped_{0};
};

TEST_F(HostClose, DropsAPeerWhoseCableIsCutWhileTransfersAreInFlight) {
  for (const char* name : {"written", "read"}) far().add(name, {.kind = "host", .bytes = kBytes});
  third().add("beside", {.kind = "host", .bytes = kBytes});
  for (int i = 0; i < 2; ++i)
    held_.push_back(Held::make(engine(), {.kind = "host", .bytes = kBytes}));
  const Peer peer = hosts_->connect(far().address()), other = hosts_->connect(third().address());
  const RemoteRegion written = take(peer.lookup("written")), read = take(peer.lookup("read")),
                     beside = take(other.lookup("beside"));
  const Block all{0, 0, kBytes};
  const auto one = std::span(&all, 1);
  network().cut();
  const Transfer moving[] = {take(peer.write(held_[0].region, written, one)),
                             take(peer.read(held_[1].region, read, one))};
  EXPECT_EQ(finished(other.write(held_[0].region, beside, one)).to_string(), "ok");
  expect_to_close();
  for (const Transfer& each : moving) {
    const Code code = each.status().code();
    EXPECT_TRUE(code == Code::disconnected || code == Code::canceled) << each.status().to_string();
  }
  EXPECT_EQ(dropped_, 1) << "and nobody else";
}

TEST_F(HostClose, DropsAPeerThatHasItsKeysAndDoesNotSayGoodbye) {
  held_.push_back(Held::make(engine(), {.kind = "host", .bytes = kBytes}));
  must(engine().publish("ours", held_[0].region));
  must(
      network().at(Host::near, [this] { return engine().listen(Network::listen_at(Host::near)); }));
  for (FarEngine* each : {&far(), &third()}) {
    each->add("theirs", {.kind = "host", .bytes = kBytes});
    each->connect(engine().address());
    EXPECT_EQ(take(each->explain("theirs", "ours", kBytes)), "tcp");
  }
  network().cut();
  expect_to_close();
  EXPECT_EQ(dropped_, 1) << "and nobody else";
}

}  // namespace close_test
}  // namespace linkspan::test
