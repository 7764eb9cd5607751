// Tests exhausted memory in one thread of the library: what it serves is dropped, the process and
// all other peers go on, and so does the thread once there is memory again.
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/fd.hpp"
#include "copy/cpu_copier.hpp"
#include "linkspan/completion_queue.hpp"
#include "linkspan/engine.hpp"
#include "linkspan/store.hpp"
#include "tests/support/no_memory.hpp"
#include "tests/support/process.hpp"
#include "tests/support/take.hpp"

namespace linkspan::test {
namespace no_memory_test {

constexpr Block kAll{0, 0, 1u << 20};
constexpr std::uint64_t kPlaces = 16;

/// Two Engines of this process and a store, whose threads are served by the same kind of loops.
class WithoutMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/linkspan-test-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
    open();
  }
  void TearDown() override {
    client_.reset();
    server_.reset();
    std::filesystem::remove_all(folder_);
  }
  void open() {
    EngineOptions options{.name = "here", .socket_dir = folder_, .use_gpu = false};
    options.log = [](LogLevel, std::string_view) {};
    server_ = take(Engine::open(options));
    client_ = take(Engine::open(options));
    must(server_->listen("unix:" + folder_ + "/s"));
    unix_ = server_->address();
    must(server_->listen("tcp:127.0.0.1:0"));
    there_ = take(server_->allocate_shared(kPlaces * kAll.bytes));
    here_ = take(client_->allocate_shared(kAll.bytes));
    must(server_->publish("there", there_));
  }
  std::string address(bool tcp) const { return tcp ? server_->address() : unix_; }
  /// Meets a new peer and writes to it, each time elsewhere, as a write that was given up may go on
  /// for a moment. Returns how that ended.
  Status move(bool tcp, Duration patience) {
    const auto peer = client_->connect(address(tcp), patience);
    if (!peer.ok()) return peer.status();
    const auto remote = peer->lookup("there", patience);
    if (!remote.ok()) return remote.status();
    const Block block{0, moves_++ % kPlaces * kAll.bytes, kAll.bytes};
    const auto moved = peer->write(here_, *remote, std::span(&block, 1), {.deadline = patience});
    return moved.ok() ? moved->wait(patience) : moved.status();
  }
  void expect_to_move(bool tcp) {
    Status status = move(tcp, 10s);
    const auto limit = base::Deadline::after(base::Clock::steady(), 20s);
    while (!status.ok() && !limit.passed()) status = move(tcp, 10s);
    EXPECT_EQ(status.to_string(), "ok");
  }
  /// Lets allocations of that thread fail, all and some, while peers come and bytes move.
  void without(const char* thread, bool tcp) {
    expect_to_move(tcp);
    fail_some(thread, [&] { (void)move(tcp, 300ms); });
    expect_to_move(tcp);
    expect_to_move(!tcp);
  }
  /// Calls `use` twice at least, and until an allocation has failed.
  template <class Use>
  static void fail_some(const char* thread, const Use& use) {
    for (const unsigned every : {1u, 2u, 3u, 7u}) {
      const NoMemory none(thread, every);
      const auto limit = base::Deadline::after(base::Clock::steady(), 20s);
      for (int i = 0; i < 2 || (NoMemory::failed() == 0 && !limit.passed()); ++i) use();
      EXPECT_GT(NoMemory::failed(), 0u) << thread << " asked for none";
    }
  }

  std::string folder_, unix_;
  std::optional<Engine> server_, client_;
  Region there_, here_;
  std::uint64_t moves_ = 0;
};

TEST_F(WithoutMemory, ControlGoesOn_OfUnixSockets) { without("ls-control", false); }
TEST_F(WithoutMemory, ControlGoesOn_OfTcp) { without("ls-control", true); }
TEST_F(WithoutMemory, DataConnectionsGoOn) { without("ls-tcp", true); }

/// An executor that has no memory to count whose copy it is about to make drops that copy.
TEST_F(WithoutMemory, CpuCopiesGoOn) {
  const auto us =
      base::Fd::from("pidfd_open", static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  const auto copier = take(copy::CpuCopier::create(2));
  const std::vector<std::byte> from(4096, std::byte{7});
  std::vector<std::byte> to(from.size());
  const copy::Piece piece{.to = reinterpret_cast<std::uintptr_t>(to.data()),
                          .from = reinterpret_cast<std::uintptr_t>(from.data()),
                          .bytes = to.size()};
  const auto copy = [&]() -> Status {
    const auto ticket = copier->start({.method = copy::Method::cross_process,
                                       .pieces = {&piece, 1},
                                       .pid = ::getpid(),
                                       .pidfd = us->get(),
                                       .remote_is_source = true,
                                       .peer = 1});
    if (!ticket.ok()) return ticket.status();
    const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
    for (auto end = copier->poll(*ticket); !limit.passed(); end = copier->poll(*ticket))
      if (end) return *end;
    return {Code::timed_out, Scope::request, "the executor does not tell the end"};
  };
  ASSERT_EQ(copy().to_string(), "ok");
  fail_some("ls-copy", [&] {
    if (const Status end = copy(); !end.ok()) {
      EXPECT_EQ(end.what(), "no memory");
    }
  });
  EXPECT_EQ(copy().to_string(), "ok");
  EXPECT_EQ(to, from);
}

/// The flows of a peer for which there is none break; its other transfers take new ones.
TEST_F(WithoutMemory, NetworkPluginsGoOn) {
  EngineOptions options{.name = "by plugin", .socket_dir = folder_, .use_gpu = false};
  options.log = [](LogLevel, std::string_view) {};
  options.transport["nccl_net.plugin"] =
      file_beside_this_program("libnccl-net-linkspan-test-v12.so");
  auto far = take(Engine::open(options)), near = take(Engine::open(options));
  must(far.listen("unix:" + folder_ + "/p"));
  const Region to = take(far.allocate_shared(kPlaces * kAll.bytes));
  const Region from = take(near.allocate_shared(kAll.bytes));
  must(far.publish("there", to));
  const auto write = [&](Duration patience) {
    const auto peer = near.connect(far.address(), patience);
    if (!peer.ok()) return peer.status();
    const auto remote = peer->lookup("there", patience);
    if (!remote.ok()) return remote.status();
    TransferOptions by_plugin;
    by_plugin.deadline = patience;
    by_plugin.require = "nccl_net";
    const Block block{0, moves_++ % kPlaces * kAll.bytes, kAll.bytes};
    const auto moved = peer->write(from, *remote, std::span(&block, 1), by_plugin);
    return moved.ok() ? moved->wait(patience) : moved.status();
  };
  ASSERT_EQ(write(10s).to_string(), "ok");
  fail_some("ls-nccl-net", [&] { (void)write(300ms); });
  Status status = write(10s);
  const auto limit = base::Deadline::after(base::Clock::steady(), 20s);
  while (!status.ok() && !limit.passed()) status = write(10s);
  EXPECT_EQ(status.to_string(), "ok");
  expect_to_move(false);
}

/// No user's thread waits for these transfers. Each reports its end, whatever the result.
TEST_F(WithoutMemory, ProgressGoesOn) {
  const auto peer = take(client_->connect(unix_, 10s));
  const auto remote = take(peer.lookup("there", 10s));
  const auto wire = take(client_->connect(address(true), 10s));
  const auto by_wire = take(wire.lookup("there", 10s));
  auto queue = take(CompletionQueue::create());
  std::vector<Transfer> begun;
  const auto begin = [&](const Peer& with, const RemoteRegion& to) {
    constexpr std::uint64_t kBytes = 8192;  // of its own for each: they are in flight together
    const std::uint64_t at = begun.size() * kBytes;
    ASSERT_LT(at, kAll.bytes);
    const Block block{at, at, kBytes};
    auto moved = with.write(here_, to, std::span(&block, 1), {.deadline = 300ms});
    if (!moved.ok()) return;
    must(queue.add(*moved, begun.size()));
    begun.push_back(*std::move(moved));
  };
  const auto use = [&] {
    for (int i = 0; i < 4; ++i) begin(peer, remote), begin(wire, by_wire);
    std::this_thread::sleep_for(50ms);
  };
  use();
  fail_some("ls-progress", use);
  std::size_t told = 0;
  const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
  for (; told < begun.size() && !limit.passed(); std::this_thread::sleep_for(1ms))
    told += queue.take().size();
  EXPECT_EQ(told, begun.size());
  const auto last = wire.write(here_, by_wire, std::span(&kAll, 1), {.deadline = 10s});
  EXPECT_EQ((last.ok() ? last->wait(10s) : last.status()).to_string(), "ok");
  expect_to_move(false);
}

TEST_F(WithoutMemory, AStoreGoesOn) {
  const auto store = take(open_tcp_store({.port = 0, .role = StoreRole::serve, .timeout = 10s}));
  const std::string at = store->address();
  const auto port = static_cast<std::uint16_t>(std::stoul(at.substr(at.rfind(':') + 1)));
  const auto use = [&](Duration patience) {
    const auto client =
        open_tcp_store({.port = port, .role = StoreRole::connect, .timeout = patience});
    if (!client.ok()) return client.status();
    if (Status s = (*client)->set("key", std::string(100'000, 'x')); !s.ok()) return s;
    return (*client)->get("key", patience).status();
  };
  ASSERT_EQ(use(10s).to_string(), "ok");
  std::vector<std::unique_ptr<Store>> met;  // before memory ends
  met.reserve(8);
  for (int i = 0; i < 8; ++i)
    met.push_back(take(open_tcp_store({.port = port, .role = StoreRole::connect, .timeout = 10s})));
  fail_some("ls-store", [&] {
    if (!met.empty()) {
      (void)met.back()->set("key", std::string(100'000, 'y'));
      met.pop_back();
    }
    (void)use(300ms);
  });
  Status status = use(10s);
  const auto limit = base::Deadline::after(base::Clock::steady(), 20s);
  while (!status.ok() && !limit.passed()) status = use(10s);
  EXPECT_EQ(status.to_string(), "ok");
}

TEST_F(WithoutMemory, AStoreGivesNoBytesOfAnotherAnswer) {
  const auto server = take(open_tcp_store({.port = 0, .role = StoreRole::serve, .timeout = 10s}));
  const std::string at = server->address();
  const auto port = static_cast<std::uint16_t>(std::stoul(at.substr(at.rfind(':') + 1)));
  must(server->set("large", std::string(100'000, 'x')));
  must(server->set("small", "right"));
  const auto meet = [&] {
    return take(open_tcp_store({.port = port, .role = StoreRole::connect, .timeout = 10s}));
  };
  auto client = meet();
  std::size_t given_up = 0;
  const auto check = [&](bool threw) {
    const auto small = client->get("small", 10s);
    if (small.ok()) {
      EXPECT_EQ(*small, "right");
    } else {
      EXPECT_TRUE(threw) << small.status().to_string();
      EXPECT_EQ(small.status().code(), Code::disconnected) << small.status().to_string();
      ++given_up;
    }
    client = meet();
  };
  fail_each_allocation([&] { (void)client->get("large", 10s); }, check);
  EXPECT_GT(given_up, 0U);
  fail_each_allocation([&] { (void)client->get("none", 10ms); }, check);
}

}  // namespace no_memory_test
}  // namespace linkspan::test
