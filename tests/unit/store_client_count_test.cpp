// Tests the count of a store's clients: what ends a wait for them, and the text of its time-out.
#include "store/client_count.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/support/take.hpp"

namespace linkspan::store {
namespace store_client_count_test {

using namespace std::chrono_literals;

TEST(ClientCount, DrainsAtOnce_WhenThereAreNone) {
  ClientCount clients;
  EXPECT_TRUE(clients.drain(base::Deadline::in(0s)).ok()) << "although no time is left";
  clients.add(2);
  clients.add(-2);
  EXPECT_TRUE(clients.drain(base::Deadline::in(0s)).ok());
}

TEST(ClientCount, NamesHowManyAreLeft_WhenTheDeadlinePasses) {
  ClientCount clients;
  clients.add(3);
  clients.add(-1);
  const Status status = clients.drain(base::Deadline::in(5ms));
  EXPECT_EQ(status.code(), Code::timed_out);
  EXPECT_EQ(status.what(), "2 clients of the store had not finished");
  clients.add(-1);
  EXPECT_EQ(clients.drain(base::Deadline::in(0s)).what(),
            "1 clients of the store had not finished");
}

/// A wait that nothing woke would end at its deadline, and find no client.
TEST(ClientCount, EndsTheWait_WhenTheLastOneFinishes) {
  ClientCount clients;
  for (int round = 0; round < 20; ++round) {
    clients.add(2);
    const auto limit = base::Deadline::in(30s);
    std::atomic<bool> begun = false;
    Status status(Code::internal, Scope::process, "no answer");
    {
      const std::jthread waiter([&] {
        begun = true;
        begun.notify_all();
        status = clients.drain(limit);
      });
      begun.wait(false);
      clients.add(-1);
      std::this_thread::yield();
      clients.add(-1);
    }
    EXPECT_TRUE(status.ok()) << status.to_string();
    ASSERT_GT(limit.left(), 10s) << "it slept until its deadline";
  }
}

TEST(ClientCount, EndsAllWaits_WhenTheLastOneFinishes) {
  ClientCount clients;
  clients.add(1);
  const auto limit = base::Deadline::in(30s);
  std::atomic<unsigned> begun = 0, ended = 0;
  {
    std::vector<std::jthread> waiters;
    for (int i = 0; i < 4; ++i)
      waiters.emplace_back([&] {
        ++begun;
        if (clients.drain(limit).ok()) ++ended;
      });
    while (begun != 4) std::this_thread::yield();
    EXPECT_EQ(ended, 0u);
    clients.add(-1);
  }
  EXPECT_EQ(ended, 4u);
  EXPECT_GT(limit.left(), 10s);
}

}  // namespace store_client_count_test
}  // namespace linkspan::store
