// Tests windows between two Engines: a CPU does what kernels do if all memory is host memory (hosts
// can use the device headers too), mapped, through the proxy, and to a remote peer; and what ends a
// window.
#include <stdlib.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "linkspan/device/packet.cuh"
#include "linkspan/window.hpp"
#include "tests/conformance/wire_pair.hpp"
#include "tests/support/sanitizer_order.hpp"

namespace linkspan::test {
namespace window_test {

using device::Outcome;
using device::PadLayout;
constexpr auto kThread = device::Scope::thread;
constexpr std::uint64_t kBytes = 1u << 16, kBound = 10'000'000'000;
constexpr PadLayout kLayout{.signals = 8, .mailboxes = 1, .mailbox_bytes = 1024};

/// An Engine with a region and a pad in shared memory, and its window onto the other's.
struct Side {
  explicit Side(const char* name) : Side(engine_options(name)) {}
  explicit Side(const EngineOptions& options)
      : engine(take(Engine::open(options))),
        region(take(engine.allocate_shared(kBytes))),
        pad(take(engine.allocate_shared(kLayout.bytes()))) {
    must(engine.listen());
    must(engine.publish("data", region));
    must(engine.publish("pad", pad));
  }
  void open(const Peer& other, WindowOptions options) {
    peer = other;
    window = take(try_open(std::move(options)));
    w = window.device();
  }
  Result<Window> try_open(WindowOptions options) {
    options.local = region;
    options.remote = remote = take(peer.lookup("data"));
    options.local_pad = pad;
    options.remote_pad = remote_pad = take(peer.lookup("pad"));
    return peer.window(options);
  }
  unsigned char* data() const { return static_cast<unsigned char*>(region.data()); }

  Engine engine;
  Region region, pad;
  Peer peer;
  RemoteRegion remote, remote_pad;
  Window window;
  device::Window w;
};

constexpr const char* kAnyPort = "tcp:127.0.0.1:0";

enum class By { mapping, proxy, tcp, verbs };
const char* name_of(By by) {
  if (by == By::tcp || by == By::verbs) return by == By::tcp ? "tcp" : "verbs";
  return by == By::mapping ? "mapping" : "proxy";
}

class Windows : public ::testing::TestWithParam<By> {
 protected:
  /// Uses several data connections, so that frames overtake each other.
  static void SetUpTestSuite() { ::setenv("LINKSPAN_TCP_STREAMS", "4", 1); }
  static void TearDownTestSuite() { ::unsetenv("LINKSPAN_TCP_STREAMS"); }
  static bool proxied() { return GetParam() != By::mapping; }
  static bool forced() { return GetParam() == By::proxy; }
  static bool remote() { return GetParam() == By::tcp || GetParam() == By::verbs; }
  static EngineOptions options_of(const char* name) {
    return GetParam() == By::verbs ? wire_options(kVerbs, name) : engine_options(name);
  }
  void SetUp() override {
    const WindowOptions options{.layout = kLayout, .force_proxy = forced(), .queue = 16};
    if (remote()) must(right_.engine.listen(kAnyPort));
    Peer to_right = take(left_.engine.connect(right_.engine.address()));
    Peer to_left = take(right_.engine.accept(10s));
    left_.open(to_right, options);
    right_.open(to_left, options);
    if (remote()) {
      EXPECT_EQ(left_.window.path(),
                "proxy: " + std::string(name_of(GetParam())) + " maps nothing");
    }
  }
  static void fill(Side& side, unsigned seed) {
    for (std::uint64_t i = 0; i < kBytes; ++i)
      side.data()[i] = static_cast<unsigned char>(i * 7 + i / 251 + seed);
    order(side);
  }
  static void clear(Side& side) {
    std::memset(side.data(), 0, kBytes);
    order(side);
  }
  /// Orders the next accesses for the sanitizer. A remote peer orders them really, which no
  /// sanitizer sees.
  static void order(Side& side) { test::order_accesses(side.engine); }

  Side left_{options_of("left")}, right_{options_of("right")};
};

TEST_P(Windows, PutThenSignal) {
  EXPECT_EQ(left_.window.path().substr(0, 6), proxied() ? "proxy:" : "mapped");
  EXPECT_EQ(left_.w.proxied(), proxied());
  const std::string told = "window onto \"data\" of peer " + std::to_string(left_.peer.id()) +
                           ", " + left_.window.path();
  EXPECT_NE(left_.engine.dump().find(told), std::string::npos) << left_.engine.dump();
  fill(left_, 1);
  clear(right_);
  std::uint64_t count = 0;
  for (const auto& [offset, bytes] :
       {std::pair<std::uint64_t, std::uint64_t>{0, 1}, {3, 777}, {4096, 0}, {5000, 60000}}) {
    ASSERT_EQ(device::put_signal<kThread>(left_.w, offset, left_.data() + offset, bytes, 2),
              Outcome::ok);
    ASSERT_EQ(device::wait_signal(right_.w, 2, ++count, right_.w.within(kBound)), Outcome::ok);
    EXPECT_EQ(std::memcmp(right_.data() + offset, left_.data() + offset, bytes), 0);
  }
  EXPECT_EQ(right_.data()[1], 0);
  EXPECT_EQ(device::read_signal(right_.w, 2), 4u);
  EXPECT_EQ(device::read_signal(right_.w, 1), 0u);
}

TEST_P(Windows, ManyInFlightKeepTheirOrder) {
  constexpr std::uint64_t kCount = 400, kPiece = kBytes / kCount;
  fill(left_, 2);
  std::jthread kernel([this] {
    for (std::uint64_t i = 0; i < kCount; ++i) {
      const std::uint64_t at = i * kPiece;
      EXPECT_EQ(device::put<kThread>(left_.w, at, left_.data() + at, kPiece), Outcome::ok);
      if (i % 7 == 6) {
        EXPECT_EQ(device::signal_add(left_.w, 0, 7), Outcome::ok);
      }
    }
    EXPECT_EQ(device::flush<kThread>(left_.w, left_.w.within(kBound)), Outcome::ok);
  });
  for (std::uint64_t seen = 0; seen + 7 <= kCount;) {
    ASSERT_EQ(device::wait_signal(right_.w, 0, seen + 7, right_.w.within(kBound)), Outcome::ok);
    seen = device::read_signal(right_.w, 0);
    ASSERT_EQ(std::memcmp(right_.data(), left_.data(), seen * kPiece), 0)
        << "a signal before its data";
  }
}

TEST_P(Windows, GetReadsWhatIsThere) {
  fill(right_, 3);
  clear(left_);
  ASSERT_EQ(device::get<kThread>(left_.w, left_.data() + 5, 9, 5000), Outcome::ok);
  ASSERT_EQ(device::flush<kThread>(left_.w, left_.w.within(kBound)), Outcome::ok);
  EXPECT_EQ(std::memcmp(left_.data() + 5, right_.data() + 9, 5000), 0);
  EXPECT_EQ(left_.data()[5005], 0);
}

TEST_P(Windows, MessagesOfAMailbox) {
  constexpr std::uint64_t kCount = 300;
  const auto bytes_of = [](std::uint64_t n) { return n * 37 % 2000; };  // packets, and above
  std::jthread sender([&] {
    for (std::uint64_t n = 1; n <= kCount; ++n) {
      for (std::uint64_t i = 0; i < bytes_of(n); ++i)
        left_.data()[i] = static_cast<unsigned char>(n + i);
      ASSERT_EQ(device::send<kThread>(left_.w, 0, n, 64, left_.data(), bytes_of(n),
                                      left_.w.within(kBound)),
                Outcome::ok);
      ASSERT_EQ(device::flush<kThread>(left_.w, left_.w.within(kBound)), Outcome::ok);
      // A message that is put directly must have been read before the next one.
      ASSERT_EQ(device::wait_signal(left_.w, 5, n, left_.w.within(kBound)), Outcome::ok);
    }
  });
  for (std::uint64_t n = 1; n <= kCount; ++n) {
    ASSERT_EQ(device::receive<kThread>(right_.w, 0, n, 64, bytes_of(n), right_.w.within(kBound)),
              Outcome::ok);
    for (std::uint64_t i = 0; i < bytes_of(n); ++i)
      ASSERT_EQ(right_.data()[64 + i], static_cast<unsigned char>(n + i)) << n << " at " << i;
    ASSERT_EQ(device::signal_add(right_.w, 5), Outcome::ok);
  }
}

TEST_P(Windows, WhatWasOrderedIsDoneBeforeTheEnd) {
  constexpr std::uint64_t kCount = 256, kPiece = kBytes / kCount;
  left_.open(left_.peer, {.layout = kLayout, .force_proxy = forced(), .queue = 2 * kCount});
  fill(left_, 5);
  for (std::uint64_t at = 0; at < kBytes; at += kPiece)
    ASSERT_EQ(device::put_signal<kThread>(left_.w, at, left_.data() + at, kPiece, 0), Outcome::ok);
  left_.window = {};
  EXPECT_EQ(left_.engine.close(10s).to_string(), "ok");
  EXPECT_EQ(device::read_signal(right_.w, 0), kCount);
  EXPECT_EQ(std::memcmp(right_.data(), left_.data(), kBytes), 0);
}

TEST_P(Windows, AKernelThatOrdersOnHoldsUpNoEnd) {
  std::atomic<bool> enough{false};
  std::jthread kernel([this, &enough] {
    Outcome end = Outcome::ok;
    while (!enough && end == Outcome::ok) end = device::signal_add(left_.w, 0);
  });
  EXPECT_EQ(left_.engine.close(10s).to_string(), "ok");
  enough = true;
}

TEST_P(Windows, TheCpuRaisesAndWaits) {
  EXPECT_EQ(right_.window.wait_signal(3, 1, 20ms).status().code(), Code::timed_out);
  EXPECT_EQ(left_.window.raise(3, 2).to_string(), "ok");
  EXPECT_EQ(take(right_.window.wait_signal(3, 1, 5s)), 2u);
  EXPECT_EQ(left_.window.raise(3).to_string(), "ok");
  EXPECT_EQ(take(right_.window.wait_signal(3, 3, 5s)), 3u);
  EXPECT_EQ(left_.window.raise(8).code(), Code::invalid_argument);
  EXPECT_EQ(right_.window.wait_signal(8, 1, 1s).status().code(), Code::invalid_argument);
}

TEST_P(Windows, ADeadPeerEndsTheWaits) {
  std::atomic<Outcome> end{Outcome::ok};
  std::jthread waiting(
      [&] { end = device::wait_signal(left_.w, 0, 1, left_.w.within(30'000'000'000)); });
  std::jthread cpu(
      [&] { EXPECT_EQ(left_.window.wait_signal(1, 1, 30s).status().code(), Code::disconnected); });
  right_.window = {};
  must(right_.engine.close(10s));
  waiting.join();
  EXPECT_EQ(end, Outcome::aborted);
  EXPECT_EQ(left_.window.failure().code(), Code::disconnected);
  EXPECT_EQ(left_.window.raise(0).code(), Code::disconnected);
  const Outcome late = device::put<kThread>(left_.w, 0, left_.data(), 1);
  EXPECT_EQ(late, proxied() ? Outcome::failed : Outcome::ok);  // what is mapped stays mapped
}

TEST_P(Windows, CancelEndsTheWaits) {
  std::atomic<Outcome> end{Outcome::ok};
  std::jthread waiting(
      [&] { end = device::wait_signal(left_.w, 0, 1, left_.w.within(30'000'000'000)); });
  EXPECT_TRUE(left_.window.failure().ok());
  EXPECT_EQ(left_.window.cancel().to_string(), "ok");
  waiting.join();
  EXPECT_EQ(end, Outcome::aborted);
  EXPECT_EQ(left_.window.failure().code(), Code::canceled);
  EXPECT_TRUE(right_.window.failure().ok());
}

TEST_P(Windows, WhatIsOutOfRangeIsRefused) {
  fill(right_, 4);
  const std::vector<unsigned char> before(right_.data(), right_.data() + kBytes);
  EXPECT_EQ(device::put<kThread>(left_.w, kBytes - 4, left_.data(), 5), Outcome::out_of_range);
  EXPECT_EQ(device::put<kThread>(left_.w, ~std::uint64_t{0}, left_.data(), 2),
            Outcome::out_of_range);
  EXPECT_EQ(device::put_signal<kThread>(left_.w, 0, left_.data(), 1, 8), Outcome::out_of_range);
  EXPECT_EQ(device::signal_add(left_.w, 8), Outcome::out_of_range);
  EXPECT_EQ(device::wait_signal(left_.w, 8, 1, left_.w.within(1)), Outcome::out_of_range);
  if (proxied()) {  // the proxy sends from the local region alone
    unsigned char elsewhere = 0;
    EXPECT_EQ(device::put<kThread>(left_.w, 0, &elsewhere, 1), Outcome::out_of_range);
  }
  EXPECT_EQ(std::memcmp(right_.data(), before.data(), kBytes), 0);
  EXPECT_TRUE(left_.window.failure().ok());
}

INSTANTIATE_TEST_SUITE_P(By, Windows, ::testing::Values(By::mapping, By::proxy, By::tcp, By::verbs),
                         [](const auto& param) { return std::string(name_of(param.param)); });

/// The peer is killed during puts and signals.
TEST(WindowByTcp, AKilledPeerEndsAll) {
  FarEngine far({std::string(kListenAt) + kAnyPort});
  far.add("data", {.kind = "shared", .bytes = kBytes});
  far.add("pad", {.kind = "shared", .bytes = kLayout.bytes()});
  Side left{"left"};
  left.open(take(left.engine.connect(far.address())),
            {.layout = kLayout, .queue = 16, .patience = 30s});
  EXPECT_EQ(left.window.path(), "proxy: tcp maps nothing");
  std::atomic<Outcome> put{Outcome::ok}, wait{Outcome::ok}, early{Outcome::ok};
  {
    std::jthread waiting(
        [&] { wait = device::wait_signal(left.w, 0, 1, left.w.within(30'000'000'000)); });
    std::jthread kernel([&] {
      Outcome end = Outcome::ok;
      for (std::uint64_t n = 0; end == Outcome::ok; ++n) {
        end = device::put_signal<kThread>(left.w, n % 64, left.data() + n % 64, 4096, 0);
        if (n == 100) early = device::flush<kThread>(left.w, left.w.within(kBound));
        if (n == 100) far.process().kill();
      }
      put = end;
    });
  }
  EXPECT_EQ(early, Outcome::ok);
  EXPECT_TRUE(put == Outcome::failed || put == Outcome::aborted) << static_cast<int>(put.load());
  EXPECT_EQ(wait, Outcome::aborted);
  EXPECT_EQ(left.window.failure().code(), Code::disconnected) << left.window.failure().to_string();
  EXPECT_EQ(left.window.raise(0).code(), Code::disconnected);
  left.window = {};
  left.remote = left.remote_pad = {};
  EXPECT_EQ(left.engine.close(10s).to_string(), "ok");
}

class WindowRefusals : public ::testing::Test {
 protected:
  void SetUp() override { left_.peer = take(left_.engine.connect(right_.engine.address())); }
  Code refused(WindowOptions options) {
    if (options.layout.signals == 64) options.layout = kLayout;
    return left_.try_open(options).status().code();
  }
  Side left_{"left"}, right_{"right"};
};

TEST_F(WindowRefusals, LayoutsThatAreNone) {
  EXPECT_EQ(refused({}), Code::ok);
  EXPECT_EQ(refused({.layout = {.signals = 9000}}),
            Code::invalid_argument);  // the pads are smaller
  EXPECT_EQ(refused({.layout = {.signals = ~0u}}), Code::invalid_argument);
  EXPECT_EQ(refused({.layout = {.signals = 1, .mailboxes = 1, .mailbox_bytes = 24}}),
            Code::invalid_argument);
  EXPECT_EQ(refused({.layout = {.signals = 1, .mailboxes = ~0u, .mailbox_bytes = ~0u << 4}}),
            Code::invalid_argument);
  EXPECT_EQ(refused({.queue = 0}), Code::invalid_argument);
  GpuUuid nobodys{};
  nobodys[0] = std::byte{1};
  EXPECT_NE(refused({.gpu = nobodys}), Code::ok);
}

TEST_F(WindowRefusals, WhatThePeerDoesNotPermit) {
  const RegionOptions read_only{.peers = {.read = true, .write = false}};
  const Region closed = take(right_.engine.allocate_shared(kBytes, read_only));
  must(right_.engine.publish("closed", closed));
  const RemoteRegion data = take(left_.peer.lookup("data")), pad = take(left_.peer.lookup("pad"));
  const RemoteRegion remote = take(left_.peer.lookup("closed"));
  WindowOptions options{.local = left_.region,
                        .remote = data,
                        .local_pad = left_.pad,
                        .remote_pad = remote,
                        .layout = kLayout};
  EXPECT_EQ(left_.peer.window(options).status().code(), Code::permission_denied);
  // Read it may: a put fails at the proxy, which asks as any transfer does.
  options.remote = remote;
  options.remote_pad = pad;
  const Window window = take(left_.peer.window(options));
  EXPECT_NE(window.path().find("not permitted"), std::string::npos) << window.path();
  const device::Window w = window.device();
  ASSERT_EQ(device::put<kThread>(w, 0, left_.data(), 8), Outcome::ok);
  EXPECT_EQ(device::flush<kThread>(w, w.within(kBound)), Outcome::failed);
  EXPECT_EQ(window.failure().code(), Code::permission_denied) << window.failure().to_string();
}

TEST_F(WindowRefusals, MoreThanThereIsRoomFor) {
  std::vector<Window> all;
  for (;;) {
    auto window = left_.try_open({.layout = kLayout});
    if (!window.ok()) {
      EXPECT_EQ(window.status().code(), Code::no_resource) << window.status().to_string();
      break;
    }
    all.push_back(*window);
    ASSERT_LE(all.size(), 512u);
  }
  EXPECT_EQ(all.size(), 512u);
  all.pop_back();
  EXPECT_TRUE(left_.try_open({.layout = kLayout}).ok());
}

TEST_F(WindowRefusals, AnEngineThatIsClosed) {
  const Window window = take(left_.try_open({.layout = kLayout}));
  must(left_.engine.close(10s));
  EXPECT_EQ(window.failure().code(), Code::canceled);
  EXPECT_EQ(Window().failure().code(), Code::invalid_argument);
  EXPECT_EQ(Window().raise(0).code(), Code::invalid_argument);
}

TEST_F(WindowRefusals, TheOwnerHearsThatItIsUsed) {
  Window window = take(left_.try_open({.layout = kLayout}));
  left_.remote = left_.remote_pad = {};  // the window holds them
  EXPECT_EQ(right_.engine.deregister(right_.region, 20ms).code(), Code::busy);
  window = {};
  EXPECT_EQ(right_.engine.deregister(right_.region, 5s).to_string(), "ok");
}

/// Tests what the CPU sees of a window on a GPU; simple_write tests kernels.
class WindowOnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Status status = kinds_here({kKinds[0], kKinds[1]}); !status.ok())
      GTEST_SKIP() << status.to_string();
  }
};

TEST_F(WindowOnDevice, TheCpuRaisesSignalsOfAPeersGpu) {
  Side left{"left"};
  Engine right = take(Engine::open(engine_options("right")));
  Held data = Held::make(right, {.kind = "device1", .bytes = kBytes});
  Held pad = Held::make(right, {.kind = "device1", .bytes = kLayout.bytes()});
  must(right.listen());
  must(right.publish("data", data.region));
  must(right.publish("pad", pad.region));
  Held zero = Held::make(left.engine, {.kind = "host", .bytes = kLayout.bytes()});
  std::memset(zero.at(0), 0, kLayout.bytes());
  left.peer = take(left.engine.connect(right.address()));
  const RemoteRegion to = take(left.peer.lookup("pad"));
  const Block all{0, 0, kLayout.bytes()};
  must(finished(left.peer.write(zero.region, to, std::span(&all, 1))));

  left.window = take(left.try_open({.layout = kLayout}));
  EXPECT_EQ(left.window.path().substr(0, 6), "proxy:") << "a window of this CPU, onto a GPU";
  EXPECT_EQ(left.window.raise(6, 5).to_string(), "ok");
  EXPECT_EQ(left.window.raise(6, 2).to_string(), "ok");
  const Peer back = take(right.accept(10s));
  const Window theirs = take(back.window({.local = data.region,
                                          .remote = take(back.lookup("data")),
                                          .local_pad = pad.region,
                                          .remote_pad = take(back.lookup("pad")),
                                          .layout = kLayout}));
  EXPECT_EQ(theirs.wait_signal(6, 1, 1s).status().code(), Code::unsupported);
  std::uint64_t words[8] = {};
  const Block first{0, 0, sizeof words};
  must(finished(left.peer.read(zero.region, to, std::span(&first, 1))));
  std::memcpy(words, zero.at(0), sizeof words);
  EXPECT_EQ(words[6], 7u);
}

}  // namespace window_test
}  // namespace linkspan::test
