// Tests the calls of linkspan.h that return at once, between two Engines of one process.
#include <poll.h>

#include <array>
#include <string>

#include "tests/unit/c_api_fixture.hpp"

namespace linkspan::test {
namespace c_api_futures_test {

class CApiFutures : public ::testing::Test {
 protected:
  void SetUp() override {
    const linkspan_engine_options near_options = options_of("near"),
                                  far_options = options_of("far");
    ASSERT_OK(linkspan_engine_open(&near_options, &near_));
    ASSERT_OK(linkspan_engine_open(&far_options, &far_));
    ASSERT_OK(linkspan_engine_listen(far_, nullptr));
    char* address = nullptr;
    ASSERT_OK(linkspan_engine_address(far_, &address));
    address_ = taken(address);
    ASSERT_OK(linkspan_engine_allocate_shared(far_, 4096, nullptr, &region_));
    ASSERT_OK(linkspan_engine_publish(far_, "kv", region_));
    ASSERT_OK(linkspan_completion_queue_create(&queue_));
  }
  /// Stores the Peer of a connect_async().
  void connect(PeerC& peer) {
    FutureC met;
    ASSERT_OK(linkspan_engine_connect_async(near_, address_.c_str(), nullptr, &met));
    ASSERT_OK(linkspan_future_wait(met, kLong));
    ASSERT_OK(linkspan_future_peer(met, &peer));
  }

  EngineC near_, far_;
  RegionC region_;
  QueueC queue_;
  std::string address_;
};

TEST_F(CApiFutures, ConnectLookUpAndDeregister) {
  FutureC met;
  ASSERT_OK(linkspan_engine_connect_async(near_, address_.c_str(), nullptr, &met));
  EXPECT_OK(linkspan_completion_queue_add_future(queue_, met, 7));
  pollfd bell{.fd = linkspan_completion_queue_fd(queue_), .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&bell, 1, 10'000), 1);
  std::array<std::uint64_t, 2> cookies{};
  std::size_t count = 0;
  EXPECT_OK(linkspan_completion_queue_take(queue_, cookies.data(), cookies.size(), &count));
  EXPECT_EQ(count, 1u);
  EXPECT_EQ(cookies[0], 7u);
  EXPECT_EQ(linkspan_future_done(met), 1);
  PeerC peer, again;
  ASSERT_OK(linkspan_future_peer(met, &peer));
  ASSERT_OK(linkspan_future_peer(met, &again));
  EXPECT_EQ(linkspan_peer_id(peer), linkspan_peer_id(again));

  FutureC found;
  ASSERT_OK(linkspan_peer_lookup_async(peer, "kv", kLong, &found));
  EXPECT_OK(linkspan_future_wait(found, kLong));
  RemoteC remote;
  ASSERT_OK(linkspan_future_remote_region(found, &remote));
  EXPECT_EQ(linkspan_remote_region_bytes(remote), 4096u);

  FutureC ends;
  ASSERT_OK(linkspan_engine_deregister_async(far_, region_, kLong, &ends));
  EXPECT_EQ(linkspan_future_wait(ends, 0), LINKSPAN_PENDING);
  EXPECT_TRUE(says("the call goes on")) << linkspan_last_error();
  linkspan_future** const dropped = &found;  // frees it, and so what it has of the region
  EXPECT_EQ(*dropped, nullptr);
  EXPECT_EQ(*&remote, nullptr);
  EXPECT_OK(linkspan_future_wait(ends, kLong));
}

TEST_F(CApiFutures, LookUpSets) {
  RegionC other;
  ASSERT_OK(linkspan_engine_allocate_shared(far_, 64, nullptr, &other));
  const linkspan_region* const regions[] = {other};
  ASSERT_OK(linkspan_engine_publish_set(far_, "set", regions, 1, nullptr));
  PeerC peer;
  ASSERT_NO_FATAL_FAILURE(connect(peer));
  SetC known, set;
  FutureC found;
  ASSERT_OK(linkspan_peer_lookup_set_async(peer, "set", nullptr, kLong, &found));
  ASSERT_OK(linkspan_future_wait(found, kLong));
  ASSERT_OK(linkspan_future_region_set(found, &known));
  ASSERT_OK(linkspan_peer_lookup_set_async(peer, "set", known, kLong, &found));
  ASSERT_OK(linkspan_future_wait(found, kLong));
  ASSERT_OK(linkspan_future_region_set(found, &set));
  EXPECT_EQ(linkspan_region_set_version(set), linkspan_region_set_version(known));
  EXPECT_EQ(linkspan_region_set_count(set), 1u);
}

TEST_F(CApiFutures, RefuseWhatIsWrong) {
  EXPECT_EQ(linkspan_engine_connect_async(near_, address_.c_str(), nullptr, nullptr),
            LINKSPAN_INVALID_ARGUMENT);
  FutureC none;
  EXPECT_EQ(linkspan_engine_connect_async(near_, nullptr, nullptr, &none),
            LINKSPAN_INVALID_ARGUMENT);
  EXPECT_TRUE(says("address is null")) << linkspan_last_error();
  EXPECT_EQ(linkspan_engine_deregister_async(far_, region_, -1, &none), LINKSPAN_INVALID_ARGUMENT);
  EXPECT_TRUE(says("timeout is -1")) << linkspan_last_error();
  EXPECT_EQ(linkspan_future_done(nullptr), 1);
  EXPECT_EQ(linkspan_future_wait(nullptr, 0), LINKSPAN_INVALID_ARGUMENT);
  EXPECT_EQ(linkspan_future_cancel(nullptr), LINKSPAN_INVALID_ARGUMENT);
  EXPECT_EQ(linkspan_completion_queue_add_future(queue_, nullptr, 0), LINKSPAN_INVALID_ARGUMENT);

  linkspan_connect_options options = LINKSPAN_CONNECT_OPTIONS_INIT;
  options.timeout = 1000 * kSecond;
  FutureC met;
  ASSERT_OK(linkspan_engine_connect_async(near_, "unix:/nonexistent/x", &options, &met));
  PeerC peer;
  RemoteC remote;
  EXPECT_EQ(linkspan_future_peer(met, &peer), LINKSPAN_PENDING);
  EXPECT_EQ(linkspan_future_remote_region(met, &remote), LINKSPAN_INVALID_ARGUMENT);
  EXPECT_TRUE(says("the future is of no remote region")) << linkspan_last_error();
  EXPECT_OK(linkspan_future_cancel(met));
  EXPECT_EQ(linkspan_future_done(met), 1);
  EXPECT_EQ(linkspan_future_peer(met, &peer), LINKSPAN_CANCELED);
}

TEST_F(CApiFutures, OutliveTheirEngine) {
  linkspan_connect_options options = LINKSPAN_CONNECT_OPTIONS_INIT;
  options.timeout = 1000 * kSecond;
  FutureC met, ends;
  ASSERT_OK(linkspan_engine_connect_async(near_, "unix:/nonexistent/x", &options, &met));
  EXPECT_OK(linkspan_engine_close(near_, kLong));
  EXPECT_EQ(linkspan_future_wait(met, 0), LINKSPAN_CANCELED);
  ASSERT_OK(linkspan_engine_invalidate_async(far_, region_, kLong, &ends));
  EXPECT_OK(linkspan_future_wait(ends, kLong));
}

}  // namespace c_api_futures_test
}  // namespace linkspan::test
