// Another agent, between two Engines of this process.
#include "integrations/nixl/src/remote_agent.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <latch>
#include <memory>
#include <thread>

namespace linkspan::nixl {
namespace nixl_remote_agent_test {

using namespace std::chrono_literals;

TEST(NixlRemoteAgent, ClosesAPeer_ThatWasNotTakenYet) {
  Engine here = Engine::open({.name = "here", .use_gpu = false}).value();
  Engine there = Engine::open({.name = "there", .use_gpu = false}).value();
  ASSERT_TRUE(there.listen().ok());
  const base::Log log(base::Level::error, base::stderr_sink());
  std::latch closed(1);  // ends after the thread that waits for it
  const auto tasks = BackgroundTasks::start().value();
  const Services services{here, *tasks, log, 30s, {}};
  tasks->add([&closed]() -> std::optional<base::Time> {
    closed.wait();  // meanwhile no task takes the peer
    return std::nullopt;
  });
  const auto agent = std::make_shared<RemoteAgent>(
      services, "there",
      AgentAddress{.addresses = there.addresses(), .engine = "there", .secret = {}, .host = {}});
  agent->connect();
  ASSERT_TRUE(there.accept(10s).ok());
  const auto limit = base::Deadline::in(10s);
  while (here.peers().empty() && !limit.passed()) std::this_thread::yield();
  std::this_thread::sleep_for(20ms);  // until the call is done, too
  agent->close();
  closed.count_down();
  while (!here.peers().empty() && !limit.passed()) std::this_thread::yield();
  EXPECT_TRUE(here.peers().empty());
}

}  // namespace nixl_remote_agent_test
}  // namespace linkspan::nixl
