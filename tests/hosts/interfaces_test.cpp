// Tests LINKSPAN_TCP_INTERFACES between two hosts joined by two cables beside the one of the
// control connection.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/mutex.hpp"
#include "tests/conformance/engine_world.hpp"
#include "tests/hosts/hosts.hpp"

namespace linkspan::test {
namespace interfaces_test {

constexpr std::uint64_t kBytes = (16u << 20) + 5;
/// Least share of the bytes for each of four data connections, which take chunks as fast as they
/// can.
constexpr std::uint64_t kPart = kBytes / 16;
constexpr std::uint64_t kLittle = 256u << 10;  // of the control connection

class HostInterfaces : public OnHosts {
 protected:
  static void SetUpTestSuite() { ::setenv("LINKSPAN_TCP_STREAMS", "4", 1); }
  void SetUp() override {
    auto made = Network::create(Cable::plain);
    if (made.status().code() == Code::unsupported) GTEST_SKIP() << made.status().to_string();
    joined_ = take(std::move(made));
    for (const int n : {1, 2}) joined_->add_cable(n);
  }
  void TearDown() override {
    peer_ = {};
    OnHosts::TearDown();
  }
  /// Opens both Engines, which are not connected yet.
  void open(const std::string& near, const std::string& far) {
    EngineOptions options = engine_options("near");
    options.transport["tcp.interfaces"] = near;
    options.log = [this](LogLevel level, std::string_view text) {
      const base::MutexLock lock(mutex_);
      if (level == LogLevel::warning) warnings_.emplace_back(text);
      changed_.notify_all();
    };
    hosts_ = std::make_unique<Hosts>(std::move(joined_), std::move(options),
                                     std::vector<std::string>{"LINKSPAN_TCP_INTERFACES=" + far});
  }
  /// Returns the warnings about data connections; waits 10 s for `count`.
  std::vector<std::string> warnings(std::size_t count = 0) {
    const base::MutexLock lock(mutex_);
    const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
    for (;;) {
      std::vector<std::string> out;
      for (const std::string& each : warnings_)
        if (each.find("data connection") != std::string::npos) out.push_back(each);
      if (out.size() >= count || limit.passed()) return out;
      changed_.wait(mutex_, limit);
    }
  }
  /// Returns the bytes that an interface of the near host has sent and received.
  std::pair<std::uint64_t, std::uint64_t> counted(const std::string& interface) {
    const auto all =
        nlohmann::json::parse(network().run(Host::near, "ip -j -s link show dev " + interface));
    const auto& of = all.at(0).at("stats64");
    return {of.at("tx").at("bytes"), of.at("rx").at("bytes")};
  }
  /// Writes and reads; each byte is where it belongs.
  void move() {
    if (!peer_) {
      far().add("there", {.kind = "host", .bytes = kBytes});
      held_.push_back(Held::make(engine(), {.kind = "host", .bytes = kBytes}));
      peer_ = hosts_->connect(far().address());
    }
    const RemoteRegion there = take(peer_->lookup("there"));
    const std::vector<Block> blocks{{0, 5, kBytes - 5}};
    for (const Op op : {Op::write, Op::read})
      expect_moved(far(), "there", held_[0], op, blocks, seed_ += 2, [&] {
        return op == Op::write ? peer_->write(held_[0].region, there, std::span(blocks))
                               : peer_->read(held_[0].region, there, std::span(blocks));
      });
  }
  bool has_much(const std::string& interface) {
    const auto [out, in] = counted(interface);
    return out > kPart && in > kPart;
  }
  /// Moves bytes until these interfaces carry them. The first connections may be up seconds before
  /// the others, if these take another route.
  void move_by(const std::vector<std::string>& interfaces) {
    const auto limit = base::Deadline::after(base::Clock::steady(), 20s);
    const auto all = [&] {
      return std::ranges::all_of(interfaces, [&](const auto& each) { return has_much(each); });
    };
    do move();
    while (!all() && !limit.passed());
    for (const std::string& each : interfaces) EXPECT_TRUE(has_much(each)) << each;
  }
  void expect_little(const std::string& interface) {
    const auto [out, in] = counted(interface);
    EXPECT_LT(out, kLittle) << interface;
    EXPECT_LT(in, kLittle) << interface;
  }

  std::unique_ptr<Network> joined_;
  std::optional<Peer> peer_;
  std::uint64_t seed_ = 1;
  base::Mutex mutex_;
  base::Condition changed_;
  std::vector<std::string> warnings_ LINKSPAN_GUARDED_BY(mutex_);
};

TEST_F(HostInterfaces, OfBothSidesShareTheBytes) {
  open("near1,near2", "far2,far1");
  move_by({"near1", "near2"});
  expect_little("cable");
  EXPECT_EQ(warnings(), std::vector<std::string>());
}

TEST_F(HostInterfaces, CarryWhatIsSealed) {
  ::setenv("LINKSPAN_SECRET", "a secret of the tests", 1);
  open("near1,near2", "far1,far2");
  ::unsetenv("LINKSPAN_SECRET");
  move_by({"near1", "near2"});
  expect_little("cable");
  EXPECT_EQ(warnings(), std::vector<std::string>());
}

TEST_F(HostInterfaces, AreTakenWhateverTheRoutesSay) {
  joined_->run(Host::near, "ip route add 10.78.2.2/32 dev near1");
  open("near2", "far2");
  move_by({"near2"});
  for (const char* each : {"near1", "cable"}) expect_little(each);
}

TEST_F(HostInterfaces, MayIncludeTheOneByWhichTheyMet) {
  open("cable,near1", "cable,far1");
  move_by({"cable", "near1"});
  expect_little("near2");
  EXPECT_EQ(warnings(), std::vector<std::string>());
}

TEST_F(HostInterfaces, OfOneSideAloneAreToldAndNotTaken) {
  open("near1,near2", "");
  move_by({"cable"});
  for (const char* each : {"near1", "near2"}) expect_little(each);
  ASSERT_EQ(warnings(1).size(), 1u);
  EXPECT_NE(warnings()[0].find("has named none"), std::string::npos) << warnings()[0];
  EXPECT_NE(warnings()[0].find("LINKSPAN_TCP_INTERFACES"), std::string::npos) << warnings()[0];
}

TEST_F(HostInterfaces, OfTheFarSideAloneAreNotTaken) {
  open("", "far1,far2");
  move_by({"cable"});
  for (const char* each : {"near1", "near2"}) expect_little(each);
  EXPECT_EQ(warnings(), std::vector<std::string>());
}

TEST_F(HostInterfaces, ThatAreNotHereOpenNoEngine) {
  EngineOptions options = engine_options("near");
  options.security = security();
  const auto opened = [&](const char* names) {
    options.transport["tcp.interfaces"] = names;
    return joined_->at(Host::near, [&] { return Engine::open(options).status(); });
  };
  joined_->run(Host::near, "ip address flush dev near2");
  for (const char* bad : {"near1,far1", "near1,near2"}) {
    const Status status = opened(bad);
    EXPECT_EQ(status.code(), Code::not_found);
    const std::string name = std::string(bad).substr(6);
    EXPECT_NE(status.what().find("\"" + name + "\""), std::string::npos) << status.what();
    EXPECT_NE(status.what().find("usable are cable, near1"), std::string::npos) << status.what();
  }
  EXPECT_EQ(opened("near1,near1").code(), Code::invalid_argument);
  EXPECT_EQ(opened("near1").to_string(), "ok");
}

TEST_F(HostInterfaces, AreListenedAtByWhoMayLeaveTheHost) {
  EngineOptions options = engine_options("near");
  options.transport["tcp.interfaces"] = "near1,near2";
  joined_->at(Host::near, [&] {
    EXPECT_EQ(take(Engine::open(options)).listen("tcp:10.78.1.1:0").code(),
              Code::permission_denied);
    options.security = security();
    Engine open = take(Engine::open(options));
    struct {
      const char *first, *all;
    } const cases[] = {{"tcp:127.0.0.1:4710", "127.0.0.1:4710\n"},
                       {"tcp:10.77.0.1:4711", "10.77.0.1:4711 10.78.1.1:4711 10.78.2.1:4711\n"},
                       {"tcp:10.78.2.1:4712", "10.78.1.1:4712 10.78.2.1:4712\n"},
                       {"tcp:0.0.0.0:4713", "0.0.0.0:4713\n"}};
    for (const auto& each : cases) {
      EXPECT_EQ(open.listen(each.first).to_string(), "ok");
      std::string at;
      const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
      while (at != each.all && !limit.passed())  // those before close in a moment
        at = joined_->run(Host::near, "ss -Htln | awk '{print $4}' | sort | xargs");
      EXPECT_EQ(at, each.all);
    }
    return 0;
  });
}

/// Which end of the second cable is down when they meet.
class HostInterfacesDown : public HostInterfaces, public ::testing::WithParamInterface<Host> {};

TEST_P(HostInterfacesDown, CostNoConnectionAndAreToldOnce) {
  open("near1,near2", "far1,far2");
  network().run(GetParam(),
                GetParam() == Host::near ? "ip link set near2 down" : "ip link set far2 down");
  move_by({"near1", "cable"});
  ASSERT_EQ(warnings(1).size(), 1u);
  EXPECT_NE(warnings()[0].find("near2 (10.78.2.1) to 10.78.2.2:"), std::string::npos)
      << warnings()[0];
}

INSTANTIATE_TEST_SUITE_P(Every, HostInterfacesDown, ::testing::Values(Host::near, Host::far),
                         [](const auto& end) {
                           return std::string(end.param == Host::near ? "near" : "far");
                         });

}  // namespace interfaces_test
}  // namespace linkspan::test
