// Tests that notifications of one thread arrive in the order in which it posted them: alone, or
// with writes of one frame or of many that are awaited; on every transport.
#include <cstring>
#include <map>
#include <thread>
#include <vector>

#include "tests/conformance/wire_pair.hpp"

namespace linkspan::test {
namespace notification_order_test {

constexpr std::uint64_t kSmall = 100, kLarge = 3 << 20;  // one frame by TCP; several
constexpr std::uint64_t kOfAThread = kLarge;             // bytes that it writes to

/// How Engines of one host meet: by a Unix socket ("local"), by TCP, or beside a plugin.
class NotificationOrder : public ::testing::TestWithParam<const char*> {
 protected:
  NotificationOrder() {
    reader_ = std::make_unique<Engine>(take(Engine::open(options("reader"))));
    writer_ = std::make_unique<Engine>(take(Engine::open(options("writer"))));
    must(reader_->listen(name() == "tcp" ? "tcp:127.0.0.1:0" : ""));
    peer_ = take(writer_->connect(reader_->address()));
  }
  static std::string name() { return GetParam(); }
  static EngineOptions options(const std::string& engine) {
    return name() == "nccl_net" ? wire_options(12, engine) : engine_options(engine);
  }
  static void must(const Status& status) { ASSERT_TRUE(status.ok()) << status.to_string(); }

  void make_memory(std::uint64_t bytes) {
    there_ = Held::make(*reader_, {.kind = "host", .bytes = bytes});
    here_ = Held::make(*writer_, {.kind = "host", .bytes = bytes});
    must(reader_->publish("there", there_.region));
    remote_ = take(peer_.lookup("there"));
  }
  static std::vector<std::byte> message(std::uint64_t thread, std::uint64_t number) {
    const std::uint64_t words[] = {thread, number};
    std::vector<std::byte> bytes(sizeof words);
    std::memcpy(bytes.data(), words, sizeof words);
    return bytes;
  }
  /// Posts one notification; returns when it or the write that it rides on is done. `bytes`: of
  /// the write, 0: none.
  Status post(std::uint64_t thread, std::uint64_t number, std::uint64_t bytes) {
    const auto limit = base::Deadline::after(base::Clock::steady(), 30s);
    const auto text = message(thread, number);
    if (bytes == 0) {
      Status sent = peer_.notify(text);
      while (sent.code() == Code::no_resource && !limit.passed()) sent = peer_.notify(text);
      return sent;
    }
    TransferOptions options;
    options.require = name();
    options.notification = text;
    const std::uint64_t at = thread * kOfAThread;
    const Block block{at, at, bytes};
    return finished(peer_.write(here_.region, remote_, std::span(&block, 1), options));
  }
  /// Reads until `count` have come of each thread; each one's go on where its last ended.
  void read(std::uint64_t threads, std::uint64_t count) {
    const auto limit = base::Deadline::after(base::Clock::steady(), 200s);
    std::map<std::uint64_t, std::uint64_t> next;
    for (std::uint64_t came = 0; came < threads * count;) {
      ASSERT_FALSE(limit.passed()) << came << " have come";
      for (const Notification& each : reader_->notifications(1s)) {
        std::uint64_t words[2] = {};
        ASSERT_EQ(each.bytes.size(), sizeof words);
        std::memcpy(words, each.bytes.data(), sizeof words);
        ASSERT_EQ(words[1], next[words[0]]++) << "of thread " << words[0];
        ++came;
      }
    }
  }

  Held there_, here_;  // outlive the Engines
  std::unique_ptr<Engine> reader_, writer_;
  Peer peer_;
  RemoteRegion remote_;
};

/// The pair of the field: the write may take another connection than the notification before it.
TEST_P(NotificationOrder, KeepsANotificationBeforeTheWriteThatFollowsIt) {
  constexpr std::uint64_t kPairs = 600;
  make_memory(kOfAThread);
  std::jthread writing([&] {
    for (std::uint64_t i = 0; i < kPairs; ++i)
      for (const std::uint64_t bytes : {std::uint64_t{0}, kSmall})
        EXPECT_EQ(post(0, 2 * i + (bytes == 0 ? 0 : 1), bytes).to_string(), "ok");
  });
  read(1, 2 * kPairs);
}

TEST_P(NotificationOrder, KeepsTheOrderOfWhatOneThreadPosts) {
  constexpr std::uint64_t kCount = 300;
  make_memory(kOfAThread);
  std::jthread writing([&] {
    for (std::uint64_t i = 0; i < kCount; ++i) {
      const std::uint64_t kinds[] = {0, kSmall, 0, 0, kSmall, kSmall, i % 40 == 6 ? kLarge : 0};
      EXPECT_EQ(post(0, i, kinds[i % 7]).to_string(), "ok");
    }
  });
  read(1, kCount);
}

TEST_P(NotificationOrder, KeepsTheOrderOfEachOfSixteenThreads) {
  constexpr std::uint64_t kThreads = 16, kCount = 60;
  make_memory(kThreads * kOfAThread);
  std::vector<std::jthread> writing;
  for (std::uint64_t thread = 0; thread < kThreads; ++thread)
    writing.emplace_back([&, thread] {
      for (std::uint64_t i = 0; i < kCount; ++i)
        EXPECT_EQ(post(thread, i, (i + thread) % 3 == 0 ? 0 : kSmall).to_string(), "ok");
    });
  read(kThreads, kCount);
}

INSTANTIATE_TEST_SUITE_P(Every, NotificationOrder, ::testing::Values("local", "tcp", "nccl_net"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace notification_order_test
}  // namespace linkspan::test
