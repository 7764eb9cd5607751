// Tests what many regions, peers and imports cost a process: descriptors and memory. WhatTheyCost
// prints the table of docs/operating.md, "What it costs".
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "tests/conformance/engine_fixture.hpp"
#include "tests/support/few_fds.hpp"

namespace linkspan::test {
namespace many_regions_test {

constexpr const char* kHelper = "owner_of_many";
constexpr std::uint64_t kMost = 65000, kRegionBytes = 64;  // a few less than there may be, 65,536
constexpr std::uint64_t kLimit = 1024;

std::uint64_t open_fds() {
  std::uint64_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    (void)entry;
    ++count;
  }
  return count;
}

/// Returns the open descriptors once those that close a moment later are closed.
std::uint64_t fds_at_most(std::uint64_t enough) {
  const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
  std::uint64_t fds = open_fds();
  while (fds > enough && !limit.passed()) fds = open_fds();
  return fds;
}

/// Returns the resident memory of this process.
std::uint64_t resident_kib() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) / 1024;
}

EngineOptions without_gpu(std::string name) {
  EngineOptions options = engine_options(std::move(name));
  options.use_gpu = false;
  return options;
}

class Owner {
 public:
  explicit Owner() {
    options_.use_gpu = false;
    engine_ = take(Engine::open(options_));
    must(engine_->listen());
  }
  Result<Answer> handle(const Json& call) {
    const auto what = call.at("do").get<std::string>();
    if (what == "add") {
      const auto count = call.at("count").get<std::uint64_t>();
      for (std::uint64_t i = regions_.size(); i < count; ++i) {
        auto made = engine_->register_memory(memory_.data() + i * kRegionBytes, kRegionBytes);
        if (!made.ok()) return made.status();
        regions_.push_back(*std::move(made));
        if (i < 1000) must(engine_->publish("region " + std::to_string(i), regions_.back()));
      }
    }
    return Answer{{{"address", engine_->address()}, {"fds", open_fds()}, {"kib", resident_kib()}},
                  {}};
  }

 private:
  std::vector<std::byte> memory_ = std::vector<std::byte>(kMost * kRegionBytes);
  EngineOptions options_ = engine_options("owner");
  std::optional<Engine> engine_;
  std::vector<Region> regions_;  // they end before the Engine
};

void owner_main(Line& line) {
  const Limit few(RLIMIT_NOFILE, kLimit);
  Owner owner;
  line.serve([&](const Json& call, const std::vector<base::Fd>&) { return owner.handle(call); },
             [] { return false; });
}
const bool kRegistered = add_helper(kHelper, owner_main);

class ManyRegions : public ::testing::Test {
 protected:
  Json ask(const char* what, std::uint64_t count = 0) {
    return take(owner_->line().call({{"do", what}, {"count", count}})).value;
  }
  static std::uint64_t fds(const Json& usage) { return usage.at("fds").get<std::uint64_t>(); }
  static std::uint64_t kib(const Json& usage) { return usage.at("kib").get<std::uint64_t>(); }

  const std::unique_ptr<Child> owner_ = take(Child::spawn(kHelper));
};

TEST_F(ManyRegions, TakeNoDescriptorEach) {
  const std::uint64_t before = fds(ask("look"));
  EXPECT_LE(fds(ask("add", 4096)), before + 8);
  const Limit few(RLIMIT_NOFILE, kLimit);
  Engine engine = take(Engine::open(without_gpu("near")));
  Peer peer = take(engine.connect(ask("look").at("address").get<std::string>()));
  const std::uint64_t here = open_fds();
  std::vector<RemoteRegion> imported;
  for (int i = 0; i < 1000; ++i)
    imported.push_back(take(peer.lookup("region " + std::to_string(i))));
  EXPECT_LE(fds_at_most(here), here + 8);
  EXPECT_LE(fds(ask("look")), before + 32);
}

TEST_F(ManyRegions, WhatTheyCost) {
  const auto print = [](const char* what, std::uint64_t fds, std::uint64_t kib) {
    std::printf("%-28s %6llu descriptors %8llu KiB\n", what, static_cast<unsigned long long>(fds),
                static_cast<unsigned long long>(kib));
  };
  constexpr std::uint64_t kPeers = 256;
  const Json empty = ask("look");
  // A call's time is limited, and beside a sanitizer 65,000 take longer than that.
  for (std::uint64_t some = 5000; some < kMost; some += 5000) ask("add", some);
  const Json full = ask("add", kMost);
  print("65,000 regions, their owner", fds(full) - fds(empty), kib(full) - kib(empty));
  EXPECT_LE(fds(full), fds(empty) + 8);
  EXPECT_LE(kib(full) - kib(empty), 16 * kMost);  // 2 KiB each; beside ThreadSanitizer 8
  const auto address = full.at("address").get<std::string>();
  Engine engine = take(Engine::open(without_gpu("near")));
  Peer peer = take(engine.connect(address));
  const std::uint64_t here = open_fds(), memory = resident_kib();
  std::vector<RemoteRegion> imported;
  for (int i = 0; i < 1000; ++i)
    imported.push_back(take(peer.lookup("region " + std::to_string(i))));
  print("1,000 imports, who imports", fds_at_most(here) - here, resident_kib() - memory);
  EXPECT_LE(fds_at_most(here), here + 8);
  const Json one = ask("look");
  std::vector<std::pair<Engine, Peer>> others;
  for (std::uint64_t i = 0; others.size() < kPeers && i < kPeers; ++i) {
    Engine other = take(Engine::open(without_gpu("peer")));
    Peer its = take(other.connect(address));
    others.emplace_back(std::move(other), std::move(its));
  }
  const Json many = ask("look");
  print("256 peers, their owner", fds(many) - fds(one), kib(many) - kib(one));
  EXPECT_LE(fds(many) - fds(one), 3 * kPeers) << "within RLIMIT_NOFILE of 1,024";
}

}  // namespace many_regions_test
}  // namespace linkspan::test
