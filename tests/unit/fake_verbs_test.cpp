// tests/unit/fake_verbs_test.cpp - that simulated network cards carry bytes and keep the rules of
// verbs, in one process.
#include <fcntl.h>
#include <poll.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

#include "tests/unit/fake_verbs_fixture.hpp"

namespace linkspan::transport::verbs {
namespace fake_verbs_test {

constexpr std::uint64_t kGuard = test::VerbsEnd::kGuard;

class FakeVerbs : public FakeVerbsFixture {};

TEST_F(FakeVerbs, WritesBytes_OfAnySizeAndPlace) {
  connect();
  for (const std::uint32_t bytes : {0U, 1U, 777U, 65'536U, 65'537U, 900'001U}) {
    ASSERT_EQ(write(3, bytes, 5), kWcSuccess) << bytes;
    expect_memory(*far, {{5, 1, 3, bytes}});
  }
  expect_memory(*near, {});
}

TEST_F(FakeVerbs, ReadsBytes) {
  connect();
  ASSERT_EQ(near->post(near->request(kWrRdmaRead, 7, 200'001, 11)), 0);
  const auto done = near->sent();
  ASSERT_EQ(status_of(done), kWcSuccess);
  EXPECT_EQ(done->opcode, kWcRdmaRead);
  EXPECT_EQ(done->byte_len, 200'001u);
  expect_memory(*near, {{7, 2, 11, 200'001}});
  expect_memory(*far, {});
}

TEST_F(FakeVerbs, TellsTheTargetOfAnImmediate_AndOfTheEvent) {
  connect();
  ASSERT_EQ(far->post_receive(42), 0);
  ASSERT_EQ(req_notify_cq(far->recv_cq), 0);
  IbvSendWr wr = near->request(kWrRdmaWriteWithImm, 0, 100, 0);
  wr.imm_data = 0x01020304;
  ASSERT_EQ(near->post(wr), 0);
  pollfd readable{far->channel->fd, POLLIN, 0};
  ASSERT_EQ(::poll(&readable, 1, 10'000), 1);
  IbvCq* cq = nullptr;
  void* context = nullptr;
  ASSERT_EQ(ibv.get_cq_event(far->channel, &cq, &context), 0);
  EXPECT_EQ(cq, far->recv_cq);
  EXPECT_EQ(context, far.get());
  ibv.ack_cq_events(cq, 1);
  const auto got = far->received();
  ASSERT_EQ(status_of(got), kWcSuccess);
  EXPECT_EQ(got->wr_id, 42u);
  EXPECT_EQ(got->opcode, kWcRecvRdmaWithImm);
  EXPECT_EQ(got->imm_data, 0x01020304u);
  EXPECT_EQ(got->byte_len, 100u);
  EXPECT_EQ(got->qp_num, far->qp->qp_num);
  EXPECT_EQ(status_of(near->sent()), kWcSuccess);
  expect_memory(*far, {{0, 1, 0, 100}});
}

TEST_F(FakeVerbs, SendsIntoTheNextReceive_InlineToo) {
  connect();
  ASSERT_EQ(far->post_receive(1, 50, 4000), 0);
  ASSERT_EQ(far->post_receive(2, 5000, 64), 0);
  ASSERT_EQ(near->post(near->request(kWrSend, 9, 3333, 0)), 0);
  std::array<char, 10> text{"123456789"};
  IbvSge sge{reinterpret_cast<std::uint64_t>(text.data()), 10, 0};
  IbvSendWr wr{}, *bad = nullptr;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = kWrSendWithImm;
  wr.send_flags = kSendSignaled | kSendInline;
  wr.imm_data = 7;
  ASSERT_EQ(post_send(near->qp, &wr, &bad), 0);
  text.fill('x');  // the bytes were copied
  const auto first = far->received(), second = far->received();
  ASSERT_EQ(status_of(first), kWcSuccess);
  EXPECT_EQ(first->wr_id, 1u);
  EXPECT_EQ(first->byte_len, 3333u);
  EXPECT_EQ(first->opcode, kWcRecv);
  ASSERT_EQ(status_of(second), kWcSuccess);
  EXPECT_EQ(second->imm_data, 7u);
  EXPECT_STREQ(reinterpret_cast<const char*>(far->data() + 5000), "123456789");
  test::put_pattern({far->data() + 5000, 10}, 2, kGuard + 5000);
  expect_memory(*far, {{50, 1, 9, 3333}});
}

TEST_F(FakeVerbs, GathersAndScattersElements) {
  connect();
  const auto base = reinterpret_cast<std::uint64_t>(near->data());
  std::array<IbvSge, 3> sges{{{base + 10, 7, near->mr->lkey},
                              {base + 70'000, 100'001, near->mr->lkey},
                              {base + 500, 0, near->mr->lkey}}};
  IbvSendWr wr = near->request(kWrRdmaWrite, 0, 0, 1000);
  wr.sg_list = sges.data();
  wr.num_sge = 3;
  ASSERT_EQ(near->post(wr), 0);
  ASSERT_EQ(status_of(near->sent()), kWcSuccess);
  expect_memory(*far, {{1000, 1, 10, 7}, {1007, 1, 70'000, 100'001}});
  wr.opcode = kWrRdmaRead;
  wr.wr.rdma.remote_addr = near->peer.address + 300'000;
  ASSERT_EQ(near->post(wr), 0);
  ASSERT_EQ(status_of(near->sent()), kWcSuccess);
  expect_memory(*near, {{10, 2, 300'000, 7}, {70'000, 2, 300'007, 100'001}});
}

TEST_F(FakeVerbs, FreesASendsPlaceOnlyWhenACompletionIsPolled) {
  Options few;
  few.sends = 4;
  connect(few);
  std::array<IbvSendWr, 6> chain{};
  for (std::size_t i = 0; i < chain.size(); ++i) {
    chain[i] = near->request(kWrRdmaWrite, 0, 16, 16 * i);
    chain[i].next = i + 1 < chain.size() ? &chain[i + 1] : nullptr;
    chain[i].send_flags = i == 3 ? static_cast<unsigned>(kSendSignaled) : 0;
  }
  IbvSendWr* bad = nullptr;
  EXPECT_EQ(post_send(near->qp, chain.data(), &bad), ENOMEM);
  EXPECT_EQ(bad, &chain[4]);
  IbvSendWr one = near->request(kWrRdmaWrite, 0, 16, 0);
  pollfd none{-1, 0, 0};
  ::poll(&none, 1, 50);
  EXPECT_EQ(near->post(one), ENOMEM) << "all are done, and nothing was polled";
  ASSERT_EQ(status_of(near->sent()), kWcSuccess);
  EXPECT_EQ(near->post(one), 0);
  ASSERT_EQ(status_of(near->sent()), kWcSuccess);
}

TEST_F(FakeVerbs, EndsBothSides_WhenAKeyIsWrong) {
  connect();
  ASSERT_EQ(far->post_receive(5), 0);
  IbvSendWr wrong = near->request(kWrRdmaWrite, 0, 16, 0);
  IbvSendWr next = wrong, *bad = nullptr;
  wrong.wr.rdma.rkey ^= 1;
  wrong.next = &next;
  next.wr_id = 77;
  next.send_flags = 0;
  ASSERT_EQ(post_send(near->qp, &wrong, &bad), 0);
  EXPECT_EQ(status_of(near->sent()), kWcRemAccessErr);
  const auto flushed = near->sent();
  EXPECT_EQ(status_of(flushed), kWcWrFlushErr);
  EXPECT_EQ(flushed->wr_id, 77u) << "a flushed request is told of without a signal, too";
  EXPECT_EQ(near->state(), kQpsErr);
  EXPECT_EQ(far->state(), kQpsErr);
  EXPECT_EQ(far->event(), kEventQpAccessErr);
  EXPECT_EQ(status_of(far->received()), kWcWrFlushErr);
  expect_memory(*far, {});
}

TEST_F(FakeVerbs, ChecksBoundsAndAccess) {
  const std::uint64_t size = Options().bytes;
  for (const std::uint64_t to : {size - 15, size, ~std::uint64_t{0} - 7}) {
    connect();
    EXPECT_EQ(write(0, 16, to), kWcRemAccessErr) << to;
    expect_memory(*far, {});
  }
  connect();
  EXPECT_EQ(write(size - 15, 16, 0), kWcLocProtErr);
  Options read_only;
  read_only.access = kAccessLocalWrite | kAccessRemoteRead;
  connect({}, read_only);
  EXPECT_EQ(write(0, 16, 0), kWcRemAccessErr);
  connect();
  IbvSendWr wr = near->request(kWrRdmaWrite, 0, 16, 0);
  wr.wr.rdma.rkey = far->mr->lkey;  // no rkey
  ASSERT_EQ(near->post(wr), 0);
  EXPECT_EQ(status_of(near->sent()), kWcRemAccessErr);
}

TEST_F(FakeVerbs, WaitsForAReceive_AndGivesUpAfterItsRetries) {
  connect();
  ASSERT_EQ(near->post(near->request(kWrRdmaWriteWithImm, 0, 16, 0)), 0);
  EXPECT_FALSE(near->sent(0.05)) << "7 retries for ever";
  EXPECT_GT(fake.count("rnrs"), 1u);
  ASSERT_EQ(far->post_receive(1), 0);
  EXPECT_EQ(status_of(near->sent()), kWcSuccess);
  Options twice;
  twice.rnr_retry = 2;
  connect(twice);
  ASSERT_EQ(near->post(near->request(kWrSend, 0, 16, 0)), 0);
  EXPECT_EQ(status_of(near->sent()), kWcRnrRetryExcErr);
  EXPECT_EQ(far->state(), kQpsRts);
}

TEST_F(FakeVerbs, FlushesInTheErrorState_AndForgetsInReset) {
  connect();
  fake.hold(0, 1);
  ASSERT_EQ(far->post_receive(1), 0);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(near->post(near->request(kWrRdmaWrite, 0, 16, 0)), 0);
  ASSERT_EQ(near->move_to(kQpsErr), 0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(status_of(near->sent()), kWcWrFlushErr);
  ASSERT_EQ(near->post(near->request(kWrRdmaWrite, 0, 16, 0)), 0);
  EXPECT_EQ(status_of(near->sent()), kWcWrFlushErr);
  ASSERT_EQ(near->post_receive(9), 0);
  EXPECT_EQ(status_of(near->received()), kWcWrFlushErr);
  ASSERT_EQ(far->move_to(kQpsReset), 0);
  EXPECT_FALSE(far->received(0.05));
  fake.hold(0, 0);
  expect_memory(*far, {});
}

TEST_F(FakeVerbs, RefusesWhatTheDeviceHasNot) {
  connect();
  IbvDeviceAttr attr{};
  ASSERT_EQ(ibv.query_device(near->context, &attr), 0);
  IbvQpInitAttr init{};
  init.send_cq = near->send_cq;
  init.recv_cq = near->recv_cq;
  init.qp_type = kQptRc;
  init.cap = {static_cast<std::uint32_t>(attr.max_qp_wr) + 1, 1, 1, 1, 0};
  EXPECT_EQ(ibv.create_qp(near->pd, &init), nullptr);
  EXPECT_EQ(errno, EINVAL);
  init.cap = {1, 1, static_cast<std::uint32_t>(attr.max_sge) + 1, 1, 0};
  EXPECT_EQ(ibv.create_qp(near->pd, &init), nullptr);
  EXPECT_EQ(ibv.create_cq(near->context, attr.max_cqe + 1, nullptr, nullptr, 0), nullptr);
  EXPECT_EQ(ibv.reg_mr(near->pd, near->data(), attr.max_mr_size + 1, 1), nullptr);
  EXPECT_EQ(ibv.reg_mr(near->pd, near->data(), 16, kAccessRemoteWrite), nullptr)
      << "remote writes need local ones";
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(ibv.reg_mr(near->pd, nullptr, 4096, kAccessLocalWrite), nullptr);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(ibv.dealloc_pd(near->pd), EBUSY);
  EXPECT_EQ(ibv.destroy_cq(near->send_cq), EBUSY);
  IbvQpAttr to{};
  to.qp_state = kQpsInit;
  EXPECT_EQ(ibv.modify_qp(near->qp, &to, kQpState), EINVAL)
      << "from RTS, and with less than it needs";
  to.max_rd_atomic = 255;
  EXPECT_EQ(ibv.modify_qp(near->qp, &to, kQpMaxQpRdAtomic), EINVAL);
  std::array<IbvSge, 5> sges{};
  IbvSendWr wr = near->request(kWrRdmaWrite, 0, 16, 0), *bad = nullptr;
  wr.sg_list = sges.data();
  wr.num_sge = 5;
  EXPECT_EQ(post_send(near->qp, &wr, &bad), EINVAL);
  EXPECT_EQ(bad, &wr);
}

/// Floods the far end with writes until told to stop; counts what was posted.
class Flood {
 public:
  explicit Flood(test::VerbsEnd& end)
      : thread_([this, &end] {
          while (!stop_) {
            IbvWc wc{};
            end.post(
                end.request(kWrRdmaWrite, 0, static_cast<std::uint32_t>(end.options.bytes), 0));
            while (poll_cq(end.send_cq, 1, &wc) > 0) {
            }
          }
        }) {}
  ~Flood() {
    stop_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

/// Whether nothing arrives in memory that is filled with zeros.
bool quiet(test::VerbsEnd& end) {
  std::memset(end.data(), 0, end.options.bytes);
  ::poll(nullptr, 0, 20);
  for (std::size_t i = 0; i < end.options.bytes; ++i)
    if (end.data()[i] != std::byte{0}) return false;
  return true;
}

TEST_F(FakeVerbs, LandsNothing_AfterTheTargetsFence) {
  for (const bool reset : {false, true}) {
    connect();
    const Flood flood(*near);
    ::poll(nullptr, 0, 5);
    ASSERT_EQ(far->move_to(reset ? kQpsReset : kQpsErr), 0);
    EXPECT_TRUE(quiet(*far));
  }
}

TEST_F(FakeVerbs, LandsNothing_AfterTheRegistrationEnded) {
  connect();
  const Flood flood(*near);
  ::poll(nullptr, 0, 5);
  ASSERT_EQ(ibv.dereg_mr(far->mr), 0);
  far->mr = nullptr;
  EXPECT_TRUE(quiet(*far));
  EXPECT_EQ(far->event(), kEventQpAccessErr);
}

TEST_F(FakeVerbs, GivesUpAfterItsRetries_WhenTheTargetHasGone) {
  connect();
  ASSERT_EQ(far->move_to(kQpsReset), 0);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(write(0, 16, 0), kWcRetryExcErr);
  EXPECT_GT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(16));
}

TEST_F(FakeVerbs, AsksForAcknowledgedEvents) {
  connect();
  ASSERT_EQ(req_notify_cq(near->send_cq), 0);
  ASSERT_EQ(write(0, 1, 0), kWcSuccess);
  IbvCq* cq = nullptr;
  void* context = nullptr;
  ASSERT_EQ(ibv.get_cq_event(near->channel, &cq, &context), 0);
  std::atomic<bool> acknowledged = false;
  std::thread later([&] {
    ::poll(nullptr, 0, 30);
    acknowledged = true;
    ibv.ack_cq_events(cq, 1);
  });
  ASSERT_EQ(ibv.destroy_qp(near->qp), 0);
  near->qp = nullptr;
  EXPECT_EQ(ibv.destroy_cq(near->send_cq), 0);
  EXPECT_TRUE(acknowledged);
  near->send_cq = nullptr;
  later.join();
}

TEST_F(FakeVerbs, HasAGidTableWithHoles) {
  connect();
  IbvGidEntry entry{};
  EXPECT_EQ(ibv.query_gid_entry(near->context, 1, 0, entry), 0);
  EXPECT_EQ(entry.gid_type, kGidRoceV1);
  EXPECT_EQ(ibv.query_gid_entry(near->context, 1, 3, entry), ENODATA);
  EXPECT_EQ(ibv.query_gid_entry(near->context, 1, 4, entry), 0);
  EXPECT_EQ(entry.gid_type, kGidRoceV2);
  EXPECT_EQ(entry.gid.raw[10], 0xff);
  EXPECT_EQ(ibv.query_gid_entry(near->context, 1, 8, entry), EINVAL);
  IbvGid gid{};
  EXPECT_EQ(ibv.query_gid(near->context, 1, 3, &gid), 0);
  EXPECT_EQ(gid.global.interface_id, 0u);
}

}  // namespace fake_verbs_test
}  // namespace linkspan::transport::verbs
