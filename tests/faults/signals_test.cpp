// Tests a process that is interrupted all the time (a handler without SA_RESTART) and ignores no
// signal: no call fails because of it, and SIGPIPE is never raised.
#include <signal.h>
#include <sys/time.h>

#include <atomic>

#include "tests/conformance/engine_fixture.hpp"
#include "tests/support/sanitizers.hpp"

namespace linkspan::test {
namespace signals_test {

constexpr std::uint64_t kMiB = 1u << 20;

std::atomic<std::uint64_t> came{0};
void count(int) { came.fetch_add(1, std::memory_order_relaxed); }

/// A handler for the length of a scope; with an interval also the signal, each time it has passed.
class Handled {
 public:
  explicit Handled(int number, Duration every = Duration::zero()) : number_(number) {
    came = 0;
    struct sigaction mine {};
    mine.sa_handler = count;
    ::sigaction(number, &mine, &old_);
    set_timer(every);
  }
  ~Handled() {
    set_timer(Duration::zero());
    ::sigaction(number_, &old_, nullptr);
  }
  Handled(const Handled&) = delete;
  Handled& operator=(const Handled&) = delete;

 private:
  static void set_timer(Duration every) {
    const timeval each{.tv_sec = 0, .tv_usec = every / 1us};
    const itimerval timer{.it_interval = each, .it_value = each};
    ::setitimer(ITIMER_REAL, &timer, nullptr);
  }
  const int number_;
  struct sigaction old_ {};
};

/// Connects, looks up, moves by every route of a CPU, sends, waits in vain, and closes.
void work(const std::string& address, FarEngine& far) {
  Held here, shared;  // outlive the Engine
  Engine engine = take(Engine::open(engine_options("near")));
  here = Held::make(engine, {.kind = "host"});
  shared = Held::make(engine, {.kind = "shared"});
  here.fill(1);
  shared.fill(2);
  const Peer peer = take(engine.connect(address));
  EXPECT_EQ(engine.connect("nobody", 30ms).status().code(), Code::unreachable);
  far.accept();
  const Block half{0, 0, kMiB / 2}, rest{kMiB / 2, kMiB / 2, kMiB / 2};
  for (const char* name : {"shared", "host", "exclusive"}) {
    const RemoteRegion remote = take(peer.lookup(name));
    const Region& from = std::string(name) == "exclusive" ? shared.region : here.region;
    EXPECT_EQ(finished(peer.write(from, remote, std::span(&half, 1))).to_string(), "ok") << name;
    EXPECT_EQ(finished(peer.read(from, remote, std::span(&rest, 1))).to_string(), "ok") << name;
  }
  const auto received = take(far.post({.name = "sent", .bytes = kMiB, .tag = 5}));
  EXPECT_EQ(finished(peer.send(5, shared.at(0), kMiB)).to_string(), "ok");
  EXPECT_EQ(far.end(received).code, "ok");
  const Transfer alone = take(peer.recv(6, here.at(0), 8, {.deadline = 50ms}));
  EXPECT_EQ(alone.wait(5s).code(), Code::timed_out);
  EXPECT_TRUE(alone.done());
  EXPECT_EQ(engine.accept(20ms).status().code(), Code::timed_out);
  EXPECT_EQ(engine.close(5s).to_string(), "ok");
}

class Signals : public ::testing::Test {
 protected:
  void SetUp() override {
    far_.add("shared", {.kind = "shared"});
    far_.add("host", {.kind = "host"});
    far_.add("exclusive", {.kind = "host", .peers = {true, true, true}});
    far_.add_loose("sent", {.kind = "host"});
  }
  FarEngine far_;
};

TEST_F(Signals, InterruptedCallsGoOn) {
#if defined(LINKSPAN_THREAD_SANITIZER)
  GTEST_SKIP()
      << "needs a build without ThreadSanitizer, whose own locks wait for each other when a "
         "handler interrupts them";
#endif
  {
    const Handled storm(SIGALRM, 200us);
    for (int i = 0; i < 3; ++i) work(far_.address(), far_);
    EXPECT_GT(came, 100u);
  }
  // If the caller blocks the signal, it interrupts the Engine's own threads.
  const Handled storm(SIGALRM, 200us);
  sigset_t alarms, old;
  ::sigemptyset(&alarms);
  ::sigaddset(&alarms, SIGALRM);
  Engine beside = take(Engine::open(engine_options("beside")));  // its threads take them
  ::pthread_sigmask(SIG_BLOCK, &alarms, &old);
  work(far_.address(), far_);
  const Peer peer = take(beside.connect(far_.address()));
  EXPECT_TRUE(peer.lookup("shared").ok());
  EXPECT_EQ(beside.close(5s).to_string(), "ok");
  ::pthread_sigmask(SIG_SETMASK, &old, nullptr);
  EXPECT_GT(came, 50u);
}

TEST_F(Signals, APeerThatDiesRaisesNoSigpipe) {
  const Handled pipes(SIGPIPE);
  Engine engine = take(Engine::open(engine_options("near")));
  const Peer peer = take(engine.connect(far_.address()));
  const std::vector<std::byte> large(65536);
  far_.process().signal(SIGSTOP);
  while (peer.notify(large).ok()) {  // so that there is more to send when it is dead
  }
  far_.process().kill();
  const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
  while (peer.notify(large).code() != Code::disconnected && !limit.passed())
    std::this_thread::yield();
  EXPECT_EQ(peer.notify(large).code(), Code::disconnected);
  EXPECT_EQ(peer.lookup("shared").status().code(), Code::disconnected);
  EXPECT_EQ(engine.close(5s).to_string(), "ok");
  EXPECT_EQ(came, 0u);
}

}  // namespace signals_test
}  // namespace linkspan::test
