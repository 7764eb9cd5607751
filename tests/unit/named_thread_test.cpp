// Tests which threads an Engine and a Store have, by the names that an operator sees.
#include "base/named_thread.hpp"

#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>

#include "base/clock.hpp"
#include "linkspan/engine.hpp"
#include "linkspan/store.hpp"
#include "tests/support/take.hpp"

namespace linkspan::base {
namespace named_thread_test {

using namespace std::chrono_literals;
using test::must, test::take;

/// Returns the names of this process's threads, by number.
std::map<std::string, std::string> threads() {
  std::map<std::string, std::string> all;
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(each.path() / "comm");
    std::string name;
    if (std::getline(file, name)) all[each.path().filename()] = name;
  }
  return all;
}

TEST(NamedThread, HasItsName_WhenItBegins) {
  std::string name;
  named_thread<"ls-fifteen-char">([&] {
    std::ifstream file("/proc/thread-self/comm");
    std::getline(file, name);
  }).join();
  EXPECT_EQ(name, "ls-fifteen-char");
}

TEST(NamedThread, IsEachOfAnEngineAndOfAStore) {
  char folder[] = "/tmp/linkspan-test-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const auto before = threads();
  {
    std::atomic<int> lines{0};
    EngineOptions options{.name = "named", .socket_dir = folder, .use_gpu = false};
    options.log = [&](LogLevel, std::string_view) { ++lines; };
    Engine server = take(Engine::open(options)), client = take(Engine::open(options));
    Region there = take(server.allocate_shared(1 << 20)),
           here = take(client.allocate_shared(1 << 20));
    must(server.publish("there", there));
    must(server.listen("unix:" + std::string(folder) + "/s"));
    const std::string by_unix = server.address();
    must(server.listen("tcp:127.0.0.1:0"));
    const Block all{0, 0, 1 << 20};
    std::vector<Peer> peers;
    for (const std::string& address : {by_unix, server.address()}) {
      peers.push_back(take(client.connect(address, 10s)));
      const RemoteRegion remote = take(peers.back().lookup("there", 10s));
      must(take(peers.back().write(here, remote, std::span(&all, 1))).wait(10s));
    }
    const auto store = take(open_tcp_store({.port = 0, .role = StoreRole::serve}));
    std::set<std::string> names;
    const Deadline limit = Deadline::after(Clock::steady(), 10s);
    const auto named = [&] {
      names.clear();
      for (const auto& [number, name] : threads())
        if (!before.contains(number)) names.insert(name);
      for (const std::string& each : names)
        if (!each.starts_with("ls-")) return false;
      return lines != 0;
    };
    // A thread that another one of ours has just started has its name a little later.
    while (!named() && !limit.passed()) (void)::poll(nullptr, 0, 1);
    for (const std::string& each : names) EXPECT_TRUE(each.starts_with("ls-")) << each;
    for (const char* each :
         {"ls-control", "ls-progress", "ls-copy", "ls-tcp", "ls-store", "ls-log", "ls-opener"})
      EXPECT_TRUE(names.contains(each)) << each;
  }
  std::filesystem::remove_all(folder);
}

}  // namespace named_thread_test
}  // namespace linkspan::base
