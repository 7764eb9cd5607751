// Tests a child forked from a process with an Engine: the child finds the Engine dead, and the
// parent's goes on.
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "linkspan/completion_queue.hpp"
#include "tests/conformance/engine_fixture.hpp"
#include "tests/support/kinds.hpp"
#include "tests/support/sanitizer_order.hpp"
#include "tests/support/sanitizers.hpp"

namespace linkspan::test {
namespace engine_fork_test {

/// Runs `child` in a forked child; its exit code, or -1 when it does not end in time.
template <class Child>
int in_a_fork(Child child) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(child());
  const auto limit = base::Deadline::after(base::Clock::steady(), 20s);
  int status = 0;
  while (::waitpid(pid, &status, WNOHANG) == 0) {
    if (limit.passed()) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, &status, 0);
      return -1;
    }
    std::this_thread::yield();
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -2;
}

TEST(EngineFork, AChildFindsItDeadAndTheParentGoesOn) {
  constexpr std::uint64_t kBytes = 1u << 20;
  Held here;  // outlives the Engine
  Pair pair;
  here = Held::make(pair.engine, {.kind = "shared", .bytes = kBytes});
  pair.far.add("there", {.kind = "shared", .bytes = kBytes});
  RemoteRegion there = pair.remote("there");
  here.fill(1);
  pair.far.fill("there", 2);
  const Block half{0, 0, kBytes / 2}, rest{kBytes / 2, kBytes / 2, kBytes / 2};
  Transfer flying = take(pair.peer.write(here.region, there, std::span(&half, 1)));
  CompletionQueue queue = take(CompletionQueue::create());
  must(queue.add(flying, 7));

  const int code = in_a_fork([&] {
    const auto dead = [](const Status& status) {
      return status.code() == Code::invalid_argument && status.scope() == Scope::process &&
             status.what().find("forked") != std::string::npos;
    };
    int step = 1;
    if (!dead(pair.engine.register_memory(&step, 4).status())) return step;
    ++step;
    if (!dead(pair.engine.connect("nobody", 1s).status())) return step;
    ++step;
    if (!dead(pair.peer.write(here.region, there, std::span(&rest, 1)).status())) return step;
    ++step;
    if (!dead(pair.peer.send(1, &step, 4).status())) return step;
    ++step;
    if (pair.peer.state() != PeerState::gone || pair.engine.progress() != 0) return step;
    ++step;
    if (!flying.done() && !dead(flying.wait(1s))) return step;
    ++step;
    if (queue.fd() != -1 || !queue.take().empty() || !dead(queue.add(flying, 8))) return step;
    CompletionQueue own = take(CompletionQueue::create());
    if (!dead(own.add(flying, 8))) return step;
    ++step;
    if (!dead(pair.engine.close(1s))) return step;
    { const Engine ending = std::move(pair.engine); }
    { const RemoteRegion ending = std::move(there); }
    { const Peer ending = std::move(pair.peer); }
    { const Transfer ending = std::move(flying); }
    { const CompletionQueue ending = std::move(queue); }
    return 0;
  });
  EXPECT_EQ(code, 0) << "the step that was not refused; -1: it hung";

  EXPECT_EQ(flying.wait(10s).to_string(), "ok");
  test::order_accesses(pair.engine);  // with the thread that reported to the queue
  EXPECT_EQ(queue.take(), std::vector<std::uint64_t>{7});
  EXPECT_EQ(finished(pair.peer.write(here.region, there, std::span(&rest, 1))).to_string(), "ok");
  EXPECT_EQ(pair.far.difference("there", 2, {{0, 1, 0, kBytes}}), "");
}

TEST(EngineFork, AChildOpensOneOfItsOwn) {
#if defined(LINKSPAN_THREAD_SANITIZER)
  GTEST_SKIP() << "needs a build without ThreadSanitizer, which forbids threads after a fork";
#endif
  Pair pair;
  const int code = in_a_fork([] {
    EngineOptions options = engine_options("child");
    options.use_gpu = false;
    auto own = Engine::open(options);
    if (!own.ok()) return 1;
    if (!own->allocate_shared(4096).ok()) return 2;
    return own->close(5s).ok() ? 0 : 3;
  });
  EXPECT_EQ(code, 0);
}

TEST(EngineFork, AChildOfAProcessWithThreadsOpensTheFirstOne) {
#if defined(LINKSPAN_SANITIZER)
  GTEST_SKIP() << "needs a build without sanitizers, whose allocators a fork may leave locked";
#endif
  // Threads of this process, which may be doing anything outside an Engine.
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([](const std::stop_token& stop) {
      while (!stop.stop_requested()) const std::vector<std::byte> memory(1u << 12);
    });
  for (int i = 0; i < 8; ++i) {
    const int code = in_a_fork([] {
      EngineOptions options = engine_options("child");
      options.use_gpu = false;
      auto server = Engine::open(options), client = Engine::open(options);
      if (!server.ok() || !client.ok()) return 1;
      auto here = client->allocate_shared(4096), there = server->allocate_shared(4096);
      if (!here.ok() || !there.ok() || !server->publish("there", *there).ok()) return 2;
      if (!server->listen("of a child").ok()) return 3;
      auto peer = client->connect("of a child");
      if (!peer.ok()) return 4;
      auto remote = peer->lookup("there");
      const Block all{0, 0, 4096};
      if (!remote.ok() || !finished(peer->write(*here, *remote, std::span(&all, 1))).ok()) return 5;
      return client->close(5s).ok() && server->close(5s).ok() ? 0 : 6;
    });
    ASSERT_EQ(code, 0) << "the step that failed; -1: it hung";
  }
}

}  // namespace engine_fork_test
}  // namespace linkspan::test
