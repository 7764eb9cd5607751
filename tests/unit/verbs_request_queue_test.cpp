// Tests a RequestQueue against a device whose answers the test writes.
#include "transport/verbs/request_queue.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <deque>

namespace linkspan::transport::verbs {
namespace verbs_request_queue_test {

/// Takes requests, at most `accept` of them, and completes what the test says.
struct ScriptedDevice {
  ScriptedDevice() {
    context.ops.post_send = [](IbvQp* to, IbvSendWr* chain, IbvSendWr** bad) {
      return static_cast<ScriptedDevice*>(to->qp_context)->post(chain, bad);
    };
    context.ops.poll_cq = [](IbvCq* from, int count, IbvWc* into) {
      return static_cast<ScriptedDevice*>(from->cq_context)->poll(count, into);
    };
    cq.context = qp.context = &context;
    cq.cq_context = qp.qp_context = this;
    qp.send_cq = &cq;
  }
  ScriptedDevice(const ScriptedDevice&) = delete;
  ScriptedDevice& operator=(const ScriptedDevice&) = delete;

  int post(IbvSendWr* chain, IbvSendWr** bad) {
    ++doorbells;
    for (; chain != nullptr; chain = chain->next) {
      if (accept == 0) {
        *bad = chain;
        return error;
      }
      --accept;
      Posted each{*chain, {}};
      if (chain->num_sge == 1) each.element = *chain->sg_list;
      posted.push_back(each);
    }
    return 0;
  }
  int poll(int count, IbvWc* into) {
    int taken = 0;
    for (; taken < count && !completions.empty(); ++taken) {
      into[taken] = completions.front();
      completions.pop_front();
    }
    return taken;
  }
  void complete(std::uint64_t number, IbvWcStatus status = kWcSuccess) {
    IbvWc wc{};
    wc.wr_id = number;
    wc.status = status;
    completions.push_back(wc);
  }
  std::vector<std::uint64_t> signaled() const {
    std::vector<std::uint64_t> all;
    for (const Posted& each : posted)
      if ((each.request.send_flags & kSendSignaled) != 0) all.push_back(each.request.wr_id);
    return all;
  }

  struct Posted {
    IbvSendWr request;
    IbvSge element;
  };
  IbvContext context{};
  IbvCq cq{};
  IbvQp qp{};
  std::deque<Posted> posted;
  std::deque<IbvWc> completions;
  std::size_t accept = ~std::size_t{0};
  int error = ENOMEM, doorbells = 0;
};

class RequestQueueTest : public ::testing::Test {
 protected:
  static constexpr SendKeys kKeys{.local = 5, .remote = 6};
  static constexpr std::uint64_t kAll = ~std::uint64_t{0};
  using Numbers = std::vector<std::uint64_t>;

  void make(std::initializer_list<std::uint64_t> blocks, Op op = Op::write) {
    access_.granted = true;
    access_.address = 0x700000;
    batch.op = op;
    batch.memory.access = &access_;
    std::uint64_t at = 0;
    for (const std::uint64_t bytes : blocks) {
      batch.blocks.push_back({0x1000 + at, at, bytes});
      at += bytes;
    }
    batch.unsent = {{{}, {batch.blocks.size(), 0}}};
  }

  ScriptedDevice device;
  VerbsBatch batch;

 private:
  RemoteAccess access_;
};

TEST_F(RequestQueueTest, ChainsARequestForEachBlockAndSignalsTheLast) {
  RequestQueue queue({.depth = 64});
  make({10, 20, 30}, Op::read);
  EXPECT_FALSE(queue.fill(device.qp, batch, kKeys, kAll));
  ASSERT_EQ(device.posted.size(), 3u);
  EXPECT_EQ(device.doorbells, 1);
  EXPECT_EQ(device.signaled(), Numbers{3});
  EXPECT_EQ(device.posted[1].request.opcode, kWrRdmaRead);
  EXPECT_EQ(device.posted[1].request.wr.rdma.remote_addr, 0x700000u + 10);
  EXPECT_EQ(device.posted[1].request.wr.rdma.rkey, 6u);
  EXPECT_EQ(device.posted[1].element.addr, 0x1000u + 10);
  EXPECT_EQ(device.posted[1].element.length, 20u);
  EXPECT_EQ(device.posted[1].element.lkey, 5u);
  EXPECT_TRUE(batch.unsent.empty());
  EXPECT_FALSE(batch.moved());
  device.complete(3);
  EXPECT_FALSE(queue.poll(device.qp));
  EXPECT_TRUE(batch.moved());
  EXPECT_TRUE(queue.empty());
}

TEST_F(RequestQueueTest, CutsBlocksAtTheSizeOfAMessage) {
  RequestQueue queue({.depth = 64, .request = 100});
  make({250, 100, 1});
  EXPECT_FALSE(queue.fill(device.qp, batch, kKeys, kAll));
  Numbers bytes;
  for (const auto& each : device.posted) bytes.push_back(each.element.length);
  EXPECT_EQ(bytes, (Numbers{100, 100, 50, 100, 1}));
}

TEST_F(RequestQueueTest, KeepsToItsDepth_AndSignalsEachQuarter) {
  RequestQueue queue({.depth = 8, .request = 1});
  make({20});
  EXPECT_FALSE(queue.fill(device.qp, batch, kKeys, kAll));
  EXPECT_EQ(device.posted.size(), 8u);
  EXPECT_EQ(device.signaled(), (Numbers{2, 4, 6, 8}));
  EXPECT_FALSE(queue.has_room());
  device.complete(4);
  EXPECT_FALSE(queue.poll(device.qp));
  EXPECT_FALSE(queue.fill(device.qp, batch, kKeys, kAll));
  EXPECT_EQ(device.posted.size(), 12u);
}

TEST_F(RequestQueueTest, KeepsToTheShareAndTheBytesOutstanding) {
  RequestQueue queue({.depth = 64, .request = 10, .outstanding = 50});
  make({100});
  EXPECT_FALSE(queue.fill(device.qp, batch, kKeys, 30));
  EXPECT_EQ(device.posted.size(), 3u);
  EXPECT_FALSE(queue.fill(device.qp, batch, kKeys, kAll));
  EXPECT_EQ(device.posted.size(), 5u);
  EXPECT_FALSE(queue.has_room());
}

TEST_F(RequestQueueTest, GivesBackWhatThePostDidNotTake) {
  RequestQueue queue({.depth = 64, .request = 10});
  make({45, 5});
  device.accept = 2;
  EXPECT_FALSE(queue.fill(device.qp, batch, kKeys, kAll));
  EXPECT_EQ(device.posted.size(), 2u);
  ASSERT_EQ(batch.unsent.size(), 1u);
  EXPECT_EQ(batch.unsent[0].begin, (BlockPosition{0, 20}));
  EXPECT_FALSE(queue.has_room()) << "nothing more before a completion";
  EXPECT_TRUE(device.signaled().empty());
  // Nothing would complete: it signals by a write without bytes.
  device.accept = 1;
  EXPECT_FALSE(queue.poll(device.qp));
  EXPECT_EQ(device.signaled(), Numbers{3});
  EXPECT_EQ(device.posted.back().request.num_sge, 0);
  device.complete(3);
  EXPECT_FALSE(queue.poll(device.qp));
  EXPECT_TRUE(queue.empty());
  device.accept = 10;
  EXPECT_FALSE(queue.fill(device.qp, batch, kKeys, kAll));
  EXPECT_EQ(device.posted.back().request.wr_id, 7u);
  EXPECT_EQ(device.posted.back().element.length, 5u);
}

TEST_F(RequestQueueTest, Fails_WhenPostsAreRefusedForGood) {
  RequestQueue queue({.depth = 64});
  make({45});
  device.accept = 0;
  const auto failure = queue.fill(device.qp, batch, kKeys, kAll);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->post_error, ENOMEM);
  EXPECT_EQ(batch.outstanding, 0u);
  EXPECT_FALSE(batch.unsent.empty());
}

TEST_F(RequestQueueTest, NamesTheBatchWhoseRequestIsWrong) {
  RequestQueue queue({.depth = 64});
  make({10, 10});
  EXPECT_FALSE(queue.fill(device.qp, batch, kKeys, kAll));
  VerbsBatch other;
  other.op = Op::write;
  other.memory.access = batch.memory.access;
  other.blocks = {{0x9000, 0, 10}};
  other.unsent = {{{}, {1, 0}}};
  EXPECT_FALSE(queue.fill(device.qp, other, kKeys, kAll));
  device.complete(3, kWcRemAccessErr);
  const auto failure = queue.poll(device.qp);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->culprit, &other);
  EXPECT_TRUE(batch.moved()) << "the requests before have arrived";
  queue.reset();
  EXPECT_EQ(other.outstanding, 0u);
  EXPECT_EQ(other.unsent.size(), 1u);
}

TEST_F(RequestQueueTest, BlamesTheConnectionAndSendsAgain_WhenRetriesAreExceeded) {
  RequestQueue queue({.depth = 64, .request = 10});
  make({30});
  EXPECT_FALSE(queue.fill(device.qp, batch, kKeys, kAll));
  device.complete(2, kWcRetryExcErr);
  const auto failure = queue.poll(device.qp);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->culprit, nullptr);
  EXPECT_EQ(batch.outstanding, 1u);
  queue.reset();
  EXPECT_TRUE(queue.empty());
  device.posted.clear();
  EXPECT_FALSE(queue.fill(device.qp, batch, kKeys, kAll));
  EXPECT_EQ(device.posted.size(), 3u) << "all of the run";
  EXPECT_EQ(device.posted.front().request.wr_id, 4u) << "numbers go on";
}

TEST_F(RequestQueueTest, Fails_WhenWhatWasNotPostedCompletes) {
  for (const std::uint64_t number : {std::uint64_t{0}, std::uint64_t{2}, ~std::uint64_t{0}}) {
    RequestQueue queue({.depth = 4});
    make({10});
    EXPECT_FALSE(queue.fill(device.qp, batch, kKeys, kAll));
    device.complete(number);
    EXPECT_TRUE(queue.poll(device.qp).has_value()) << number;
    EXPECT_EQ(batch.outstanding, 1u);
    queue.reset();
    batch = VerbsBatch();
  }
}

}  // namespace verbs_request_queue_test
}  // namespace linkspan::transport::verbs
