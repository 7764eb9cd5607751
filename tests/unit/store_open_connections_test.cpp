#include <gtest/gtest.h>

#include "store/open_connections.hpp"

namespace linkspan::store {
namespace store_open_connections_test {

class StoreOpenConnections : public ::testing::Test {
 protected:
  /// Adds a connection that made a request and has been idle for `idle`.
  std::uint64_t add_idle(Duration idle) {
    const std::uint64_t id = connections_.add(io_);
    Connection& each = *connections_.find(id);
    EXPECT_TRUE(connections_.note_request(id, each));
    EXPECT_FALSE(connections_.note_request(id, each));
    each.moved -= idle;
    return id;
  }
  std::uint64_t evictable() {
    const auto found = connections_.evictable();
    return found ? found->first : 0;
  }

  const Limits limits_{.buffered = std::size_t{5} << 10};
  asio::io_context io_;
  KeyWaits waits_;
  OpenConnections connections_{limits_, waits_};
};

TEST_F(StoreOpenConnections, EvictTheOldestWithoutARequestFirst) {
  add_idle(2 * limits_.idle);
  const std::uint64_t first = connections_.add(io_);
  connections_.add(io_);
  EXPECT_EQ(evictable(), first);
}

TEST_F(StoreOpenConnections, EvictTheOneThatIsIdleTheLongest) {
  add_idle(2 * limits_.idle);
  const std::uint64_t longest = add_idle(4 * limits_.idle);
  const std::uint64_t waiting = add_idle(8 * limits_.idle);
  waits_.add(waiting, "key");
  EXPECT_EQ(evictable(), longest);
}

TEST_F(StoreOpenConnections, DoNotEvictOneThatIsNotIdle) {
  add_idle(Duration::zero());
  EXPECT_EQ(evictable(), 0U);
}

TEST_F(StoreOpenConnections, CountWhatAllOfThemAllocate) {
  const std::uint64_t first = connections_.add(io_), second = connections_.add(io_),
                      third = connections_.add(io_);
  EXPECT_TRUE(connections_.count(first, *connections_.find(first)));
  EXPECT_TRUE(connections_.count(second, *connections_.find(second)));
  EXPECT_TRUE(connections_.count(second, *connections_.find(second)));
  EXPECT_FALSE(connections_.count(third, *connections_.find(third)));
  connections_.erase(third);
  EXPECT_TRUE(connections_.count(first, *connections_.find(first)));
}

TEST_F(StoreOpenConnections, FindThoseThatAreBroken) {
  EXPECT_EQ(connections_.find_broken(), std::nullopt);
  const std::uint64_t id = connections_.add(io_);
  connections_.mark_broken(id + 1);
  EXPECT_EQ(connections_.find_broken(), std::nullopt);
  connections_.mark_broken(id);
  EXPECT_EQ(connections_.find_broken(), id);
  connections_.erase(id);
  EXPECT_EQ(connections_.find_broken(), std::nullopt);
}

}  // namespace store_open_connections_test
}  // namespace linkspan::store
