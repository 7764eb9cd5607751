// Tests the calls of linkspan.h for prepared transfers inside a CUDA graph, between two Engines of
// one process.
#include <cstring>
#include <memory>
#include <vector>

#include "tests/support/kinds.hpp"
#include "tests/support/user_graph.hpp"
#include "tests/unit/c_api_fixture.hpp"

namespace linkspan::test {
namespace c_api_capture_test {

class CApiCapture : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kBytes = 1 << 20;

  void SetUp() override {
    if (const Status status = need_gpus(1); !status.ok()) GTEST_SKIP() << status.to_string();
    linkspan_engine_options near_options = options_of("near"), far_options = options_of("far");
    near_options.use_gpu = far_options.use_gpu = 1;
    here_ = take(Buffer::create(MemoryKind::device, kBytes));
    there_ = take(Buffer::create(MemoryKind::device, kBytes));
    ASSERT_OK(linkspan_engine_open(&near_options, &near_));
    ASSERT_OK(linkspan_engine_open(&far_options, &far_));
    ASSERT_OK(linkspan_engine_listen(far_, nullptr));
    char* address = nullptr;
    ASSERT_OK(linkspan_engine_address(far_, &address));
    ASSERT_OK(linkspan_engine_connect(near_, taken(address).c_str(), kLong, &peer_));
    ASSERT_OK(linkspan_engine_register_memory(near_, here_->data(), kBytes, nullptr, &local_));
    ASSERT_OK(linkspan_engine_register_memory(far_, there_->data(), kBytes, nullptr, &theirs_));
    ASSERT_OK(linkspan_engine_publish(far_, "theirs", theirs_));
    ASSERT_OK(linkspan_peer_lookup(peer_, "theirs", kLong, &remote_));
    const linkspan_block block = {5, 1'003, 70'001};
    linkspan_shape shape = LINKSPAN_SHAPE_INIT;
    shape.blocks = &block;
    shape.block_count = 1;
    ASSERT_OK(linkspan_peer_prepare(peer_, LINKSPAN_WRITE, local_, remote_, &shape, &prepared_));
  }
  static linkspan_stream stream_of(const UserGraph& graph) {
    const StreamOrder order = graph.order();
    linkspan_stream out{};
    out.kind = LINKSPAN_STREAM_CREATED;
    out.handle = order.handle;
    std::memcpy(out.gpu, order.gpu.data(), sizeof out.gpu);
    return out;
  }

  std::unique_ptr<Buffer> here_, there_;  // outlive the Engines
  EngineC near_, far_;
  PeerC peer_;
  RegionC local_, theirs_;
  RemoteC remote_;
  PreparedC prepared_;
};

TEST_F(CApiCapture, CapturesCountsWaitsNotifiesAndCloses) {
  UserGraph graph;
  const linkspan_stream stream = stream_of(graph);
  linkspan_capture_options options = LINKSPAN_CAPTURE_OPTIONS_INIT;
  options.notification = "moved";
  options.notification_bytes = 5;
  CapturedC captured;
  ASSERT_OK(graph.capture(
      [&] { return linkspan_prepared_capture(prepared_, &stream, &options, &captured); }));
  EXPECT_EQ(linkspan_captured_transfer_bytes(captured), 70'001u);
  EXPECT_EQ(linkspan_captured_transfer_completed(captured), 0u);
  here_->fill(1);
  there_->fill(2);
  graph.launch();
  ASSERT_OK(linkspan_captured_transfer_wait(captured, 1, kLong));
  EXPECT_EQ(linkspan_captured_transfer_completed(captured), 1u);
  EXPECT_EQ(there_->difference(2, std::vector<Expected>{{1'003, 1, 5, 70'001}}), "");
  NotificationsC told;
  ASSERT_OK(linkspan_engine_notifications(far_, kLong, &told));
  EXPECT_EQ(linkspan_notifications_count(told), 1u);
  EXPECT_EQ(linkspan_captured_transfer_wait(captured, 2, 0), LINKSPAN_PENDING);
  EXPECT_OK(linkspan_captured_transfer_status(captured));
  ASSERT_OK(linkspan_captured_transfer_close(captured, kLong));
  EXPECT_EQ(linkspan_captured_transfer_status(captured), LINKSPAN_CANCELED);
  there_->fill(3);
  graph.launch();
  graph.synchronize();
  EXPECT_EQ(there_->difference(3, {}), "");
  EXPECT_EQ(linkspan_captured_transfer_refused(captured), 1u);
  EXPECT_EQ(linkspan_captured_transfer_wait(captured, 2, kLong), LINKSPAN_CANCELED);
}

TEST_F(CApiCapture, RefusesWhatIsWrong) {
  const UserGraph graph;
  linkspan_stream stream = stream_of(graph);
  CapturedC captured;
  EXPECT_EQ(linkspan_prepared_capture(prepared_, &stream, nullptr, &captured),
            LINKSPAN_INVALID_ARGUMENT);
  EXPECT_TRUE(says("captures no CUDA graph")) << linkspan_last_error();
  EXPECT_EQ(linkspan_prepared_capture(prepared_, nullptr, nullptr, &captured),
            LINKSPAN_INVALID_ARGUMENT);
  EXPECT_TRUE(says("stream")) << linkspan_last_error();
  linkspan_capture_options options = LINKSPAN_CAPTURE_OPTIONS_INIT;
  options.copy_ctas = -2;
  EXPECT_EQ(linkspan_prepared_capture(prepared_, &stream, &options, &captured),
            LINKSPAN_INVALID_ARGUMENT);
  EXPECT_TRUE(says("copy_ctas")) << linkspan_last_error();
  options = LINKSPAN_CAPTURE_OPTIONS_INIT;
  options.notification_bytes = 1;
  EXPECT_EQ(linkspan_prepared_capture(prepared_, &stream, &options, &captured),
            LINKSPAN_INVALID_ARGUMENT);
  stream.kind = 9;
  EXPECT_EQ(linkspan_prepared_capture(prepared_, &stream, nullptr, &captured),
            LINKSPAN_INVALID_ARGUMENT);
  EXPECT_TRUE(says("stream.kind is 9")) << linkspan_last_error();
  EXPECT_EQ(linkspan_captured_transfer_wait(nullptr, 1, 0), LINKSPAN_INVALID_ARGUMENT);
  EXPECT_EQ(linkspan_captured_transfer_close(nullptr, 0), LINKSPAN_INVALID_ARGUMENT);
  EXPECT_EQ(linkspan_captured_transfer_completed(nullptr), 0u);
}

}  // namespace c_api_capture_test
}  // namespace linkspan::test
