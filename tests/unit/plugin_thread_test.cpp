// Tests peers over one network plugin that blocks in a call for one of them.
#include "transport/nccl_net/plugin_thread.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "base/clock.hpp"
#include "linkspan/engine.hpp"
#include "tests/support/process.hpp"
#include "tests/support/take.hpp"

namespace linkspan::transport::nccl_net {
namespace plugin_thread_test {

using namespace std::chrono_literals;

constexpr Block kAll{0, 0, 1u << 20};
constexpr const char* kStall = "LINKSPAN_TEST_PLUGIN_STALL";

TEST(PluginThreads, GiveEachPeerItsOwn_AndShareThemWhereTheyEnd) {
  PluginThreads threads;
  std::set<PluginThread*> own;
  for (std::size_t i = 0; i < PluginThreads::kMax; ++i) own.insert(&threads.join());
  EXPECT_EQ(own.size(), PluginThreads::kMax);
  PluginThread& shared = threads.join();
  EXPECT_TRUE(own.contains(&shared));
  PluginThread& other = threads.join();
  EXPECT_TRUE(own.contains(&other));
  EXPECT_NE(&other, &shared);
  for (int i = 0; i < 2; ++i) threads.leave(shared);
  EXPECT_EQ(&threads.join(), &shared);
}

class PluginThatStandsStill : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    char name[] = "/tmp/linkspan-test-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
    stall_ = folder_ + "/stall";
    near_ = open("near");
    source_ = test::take(near_->allocate_shared(kAll.bytes));
  }
  void TearDown() override {
    ::unsetenv(kStall);
    std::filesystem::remove(stall_);
    near_.reset();
    far_.clear();
    std::filesystem::remove_all(folder_);
  }
  Engine open(const std::string& name) {
    EngineOptions options{.name = name, .socket_dir = folder_, .use_gpu = false};
    options.log = [](LogLevel, std::string_view) {};
    options.transport["nccl_net.plugin"] =
        test::file_beside_this_program("libnccl-net-linkspan-test-v12.so");
    return test::take(Engine::open(options));
  }
  Result<Transfer> write_to_one_more() {
    far_.push_back(open("far"));
    Engine& far = far_.back();
    test::must(far.listen("unix:" + folder_ + "/s" + std::to_string(far_.size())));
    const Region to = test::take(far.allocate_shared(kAll.bytes));
    test::must(far.publish("to", to));
    regions_.push_back(to);
    peers_.push_back(test::take(near_->connect(far.address(), 10s)));
    TransferOptions options;
    options.require = "nccl_net";
    return peers_.back().write(source_, test::take(peers_.back().lookup("to", 10s)),
                               std::span(&kAll, 1), options);
  }

  std::string folder_, stall_;
  std::optional<Engine> near_;
  Region source_;
  std::vector<Engine> far_;
  std::vector<Region> regions_;
  std::vector<Peer> peers_;
};

TEST_P(PluginThatStandsStill, StopsThatPeerAlone) {
  std::ofstream(stall_).put('x');
  ::setenv(kStall, (std::string(GetParam()) + ":" + stall_).c_str(), 1);
  const auto stalled = test::take(write_to_one_more());
  const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
  while (!std::filesystem::exists(stall_ + ".in") && !limit.passed())
    std::this_thread::sleep_for(1ms);
  ASSERT_TRUE(std::filesystem::exists(stall_ + ".in"));
  ::unsetenv(kStall);
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(test::take(write_to_one_more()).wait(10s).to_string(), "ok");
  EXPECT_FALSE(stalled.done());
  std::filesystem::remove(stall_);
  EXPECT_EQ(stalled.wait(10s).to_string(), "ok");
}

INSTANTIATE_TEST_SUITE_P(In, PluginThatStandsStill,
                         ::testing::Values("connect", "regMr", "isend", "test"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace plugin_thread_test
}  // namespace linkspan::transport::nccl_net
