// tests/unit/fake_verbs_processes_test.cpp - that simulated network cards work between processes
// that are stopped and killed.
#include <poll.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/unit/fake_verbs_fixture.hpp"

namespace linkspan::transport::verbs {
namespace fake_verbs_processes_test {

using test::Json;
constexpr const char* kHelper = "fake_verbs_far";
constexpr std::uint32_t kFloodBytes = 1 << 20;
constexpr std::uint32_t kPieces = 64, kPieceBytes = kFloodBytes / kPieces;

/// The child's end: does what the test calls for.
class FarEnd {
 public:
  FarEnd() : ibv_(*Library::load(fake_verbs_file().c_str())) {
    end_ = test::VerbsEnd::open(ibv_, {.seed = 2});
  }
  test::Answer handle(const Json& call) {
    const auto what = call.at("do").get<std::string>();
    if (what == "place") return {end_->place().to_json(), {}};
    if (what == "connect")
      return {end_->connect(test::VerbsEnd::Place::from_json(call.at("to"))), {}};
    if (what == "receive") return {end_->post_receive(call.at("id"), 0, call.at("bytes")), {}};
    if (what == "received") {
      const auto wc = end_->received();
      return {wc ? Json{wc->status, wc->wr_id, wc->imm_data, wc->byte_len} : Json(), {}};
    }
    if (what == "differs")
      return {test::first_difference(end_->memory, 2, test::VerbsEnd::kGuard,
                                     {{{.offset = call.at("offset"),
                                        .seed = 1,
                                        .from = call.at("from"),
                                        .bytes = call.at("bytes")}}}),
              {}};
    if (what == "event") return {static_cast<int>(end_->event().value_or(IbvEventType{-1})), {}};
    if (what == "stream") stream();
    if (what == "flood") flooding_ = true;
    return {Json(), {}};
  }
  bool idle() {
    if (!flooding_) return false;
    IbvWc wc{};
    end_->post(end_->request(kWrRdmaWrite, 0, kFloodBytes, 0));
    while (poll_cq(end_->send_cq, 1, &wc) > 0) {
    }
    return true;
  }

 private:
  /// Writes all of its memory, a piece at a time, each with an immediate.
  void stream() {
    for (std::uint32_t i = 0; i < kPieces; ++i) {
      IbvSendWr wr =
          end_->request(kWrRdmaWriteWithImm, i * kPieceBytes, kPieceBytes, i * kPieceBytes);
      wr.imm_data = i;
      if (end_->post(wr) != 0) throw std::runtime_error("post_send");
    }
  }

  const Library ibv_;
  std::unique_ptr<test::VerbsEnd> end_;
  bool flooding_ = false;
};

void far_main(test::Line& line) {
  FarEnd end;
  line.serve([&end](const Json& call, const std::vector<base::Fd>&) { return end.handle(call); },
             [&end] { return end.idle(); });
}
const bool kRegistered = test::add_helper(kHelper, far_main);

class FakeVerbsProcesses : public FakeVerbsFixture {
 protected:
  void connect_child(const Options& options = {}, const std::vector<std::string>& settings = {}) {
    auto spawned = test::Child::spawn(kHelper, settings);
    ASSERT_TRUE(spawned.ok()) << spawned.status().to_string();
    child = *std::move(spawned);
    near = End::open(ibv, options);
    ASSERT_NE(near, nullptr);
    ASSERT_EQ(near->connect(End::Place::from_json(call({{"do", "place"}}))), 0);
    ASSERT_EQ(call({{"do", "connect"}, {"to", near->place().to_json()}}), 0);
  }
  Json call(const Json& request) {
    auto answer = child->line().call(request);
    EXPECT_TRUE(answer.ok()) << answer.status().to_string();
    return answer.ok() ? answer->value : Json();
  }
  /// Fills this memory and waits until the child's writes are seen there.
  void await_flood() {
    call({{"do", "flood"}});
    for (int turn = 0; turn < 5000; ++turn) {
      if (test::first_difference(near->memory, 1, End::kGuard, {}) != "") return;
      ::poll(nullptr, 0, 1);
    }
    FAIL() << "nothing arrived";
  }
  /// Whether nothing arrives in memory that is filled with zeros.
  bool quiet() {
    std::memset(near->data(), 0, near->options.bytes);
    ::poll(nullptr, 0, 20);
    for (std::size_t i = 0; i < near->options.bytes; ++i)
      if (near->data()[i] != std::byte{0}) return false;
    return true;
  }

  std::unique_ptr<test::Child> child;
};

TEST_F(FakeVerbsProcesses, WriteReadAndTell) {
  connect_child();
  ASSERT_EQ(call({{"do", "receive"}, {"id", 6}, {"bytes", 0}}), 0);
  ASSERT_EQ(write(3, 500'001, 9), kWcSuccess);
  EXPECT_EQ(call({{"do", "differs"}, {"offset", 9}, {"from", 3}, {"bytes", 500'001}}), "");
  IbvSendWr wr = near->request(kWrRdmaWriteWithImm, 0, 0, 0);
  wr.imm_data = 99;
  ASSERT_EQ(near->post(wr), 0);
  ASSERT_EQ(status_of(near->sent()), kWcSuccess);
  EXPECT_EQ(call({{"do", "received"}}), (Json{kWcSuccess, 6, 99, 0}));
  ASSERT_EQ(near->post(near->request(kWrRdmaRead, 600'000, 300'000, 100'000)), 0);
  ASSERT_EQ(status_of(near->sent()), kWcSuccess);
  expect_memory(*near, {{600'000, 1, 99'994, 300'000}});
}

TEST_F(FakeVerbsProcesses, SendIntoAReceiveOfTheOther) {
  connect_child();
  ASSERT_EQ(call({{"do", "receive"}, {"id", 1}, {"bytes", 100'000}}), 0);
  ASSERT_EQ(near->post(near->request(kWrSend, 11, 99'999, 0)), 0);
  ASSERT_EQ(status_of(near->sent()), kWcSuccess);
  EXPECT_EQ(call({{"do", "received"}}).at(3), 99'999);
  EXPECT_EQ(call({{"do", "differs"}, {"offset", 0}, {"from", 11}, {"bytes", 99'999}}), "");
}

TEST_F(FakeVerbsProcesses, ExceedRetries_WhenTheTargetIsKilled) {
  connect_child();
  ASSERT_EQ(write(0, 100, 0), kWcSuccess);
  child->kill();
  EXPECT_EQ(write(0, 100, 0), kWcRetryExcErr);
  EXPECT_EQ(near->state(), kQpsErr);
}

TEST_F(FakeVerbsProcesses, ReachMemoryOfOneThatIsStopped) {
  connect_child();
  ASSERT_EQ(call({{"do", "receive"}, {"id", 3}, {"bytes", 0}}), 0);
  child->signal(SIGSTOP);
  ASSERT_EQ(write(1, 70'000, 2), kWcSuccess);
  ASSERT_EQ(near->post(near->request(kWrRdmaWriteWithImm, 0, 0, 0)), 0);
  ASSERT_EQ(status_of(near->sent()), kWcSuccess);
  child->signal(SIGCONT);
  EXPECT_EQ(call({{"do", "received"}}).at(1), 3);
  EXPECT_EQ(call({{"do", "differs"}, {"offset", 2}, {"from", 1}, {"bytes", 70'000}}), "");
}

TEST_F(FakeVerbsProcesses, EndBoth_WhenAKeyIsWrong) {
  connect_child();
  ASSERT_EQ(call({{"do", "receive"}, {"id", 3}, {"bytes", 0}}), 0);
  near->peer.rkey += 256;
  EXPECT_EQ(write(0, 1, 0), kWcRemAccessErr);
  EXPECT_EQ(call({{"do", "event"}}), static_cast<int>(kEventQpAccessErr));
  EXPECT_EQ(call({{"do", "received"}}).at(0), static_cast<int>(kWcWrFlushErr));
}

TEST_F(FakeVerbsProcesses, LandNothingAfterAFence_WhenTheWriterIsKilled) {
  for (int turn = 0; turn < 5; ++turn) {
    connect_child();
    await_flood();
    child->kill();
    ASSERT_EQ(near->move_to(kQpsErr), 0);
    EXPECT_TRUE(quiet());
  }
}

TEST_F(FakeVerbsProcesses, LandNothingAfterAFence_WhenTheWriterIsStoppedAndGoesOn) {
  for (int turn = 0; turn < 5; ++turn) {
    connect_child();
    await_flood();
    child->signal(SIGSTOP);
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_EQ(near->move_to(kQpsErr), 0);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
    std::memset(near->data(), 0, near->options.bytes);
    child->signal(SIGCONT);
    EXPECT_TRUE(quiet());
  }
}

TEST_F(FakeVerbsProcesses, StreamFromSeveralAtOnce_InAnyOrderAndLate) {
  std::vector<std::unique_ptr<test::Child>> children;
  std::vector<std::unique_ptr<End>> ends;
  for (int i = 0; i < 3; ++i) {
    connect_child({},
                  {"FAKE_VERBS_LATE_US=500", "FAKE_VERBS_RNR_PERCENT=30", "FAKE_VERBS_UNORDERED=1",
                   "FAKE_VERBS_CHUNK=1000", "FAKE_VERBS_SEED=" + std::to_string(i)});
    for (std::uint32_t id = 0; id < kPieces; ++id) ASSERT_EQ(near->post_receive(id), 0);
    children.push_back(std::move(child));
    ends.push_back(std::move(near));
  }
  for (const auto& each : children) ASSERT_TRUE(each->line().call({{"do", "stream"}}).ok());
  for (const auto& end : ends) {
    std::set<std::uint32_t> heard;
    std::vector<std::uint32_t> order;
    for (std::uint32_t i = 0; i < kPieces; ++i) {
      const auto wc = end->received();
      ASSERT_EQ(status_of(wc), kWcSuccess);
      EXPECT_EQ(wc->wr_id, i) << "receives are taken in order";
      heard.insert(wc->imm_data);
      order.push_back(wc->imm_data);
    }
    EXPECT_EQ(heard.size(), kPieces);
    EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
    expect_memory(*end, {{0, 2, 0, kFloodBytes}});
  }
}

TEST_F(FakeVerbsProcesses, DoNotReachAnAddressThatHasGone) {
  connect_child();
  const End::Place gone = near->peer;
  child->kill();
  child.reset();
  near = End::open(ibv);
  ASSERT_NE(near, nullptr);
  EXPECT_EQ(near->connect(gone), ETIMEDOUT);
}

}  // namespace fake_verbs_processes_test
}  // namespace linkspan::transport::verbs
