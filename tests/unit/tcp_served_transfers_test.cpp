// Tests the peer's transfers on regions of this side: what a peer may do, what breaks the protocol,
// and how long a transfer that stalls keeps a region.
#include "transport/tcp/served_transfers.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "memory/registry.hpp"
#include "tests/support/take.hpp"

namespace linkspan::transport::tcp {
namespace tcp_served_transfers_test {

using namespace std::chrono_literals;
using test::take;

constexpr std::uint64_t kBytes = 8192;
constexpr std::size_t kMost = 3;

class TcpServedTransfers : public ::testing::Test {
 protected:
  using Registered = std::shared_ptr<const memory::Registration>;  // also the registry's

  Registered add(std::vector<std::byte>& memory, const Permissions& peers, WireKey& key) {
    auto region = take(registry_.add(memory.data(), kBytes, peers, false));
    key = take(decode_key(take(published_.add(region->region())).bytes));
    return region;
  }
  static Head request(FrameType type, std::uint64_t id, const WireKey& key,
                      std::uint64_t offset = 0, std::uint64_t bytes = 8) {
    return {.type = type,
            .id = id,
            .serial = key.id.serial,
            .token = key.token,
            .spans = {{offset, bytes}}};
  }
  Head put(std::uint64_t id, std::uint64_t offset = 0, std::uint64_t bytes = 8) const {
    return request(FrameType::put, id, key_, offset, bytes);
  }
  Head get(std::uint64_t id, std::uint64_t offset = 0, std::uint64_t bytes = 8) const {
    return request(FrameType::get, id, key_, offset, bytes);
  }
  std::shared_ptr<Incoming> begin_put(std::uint64_t id) {
    return take(served_.find_or_create_put(put(id)));
  }
  std::shared_ptr<Outgoing> begin_get(std::uint64_t id) {
    return take(served_.add_answer(get(id)));
  }
  Code retract(bool at_once = false) {
    return published_.retract(region_->region(), at_once).code();
  }
  /// Lets the time pass in steps of a second. Returns whether anything was revoked.
  bool pass(Duration time) {
    bool revoked = false;
    for (Duration step = 0s; step < time; step += 1s)
      revoked |= served_.end_stalled(now_ += 1s).any_revoked;
    return revoked;
  }
  template <class Batch>
  static void expect_refused(const Result<std::shared_ptr<Batch>>& batch, Code code,
                             const std::string& what) {
    ASSERT_TRUE(batch.ok()) << batch.status().to_string();
    EXPECT_EQ((*batch)->status.code(), code);
    EXPECT_EQ((*batch)->status.what(), what);
    EXPECT_EQ((*batch)->use.memory(), nullptr) << "it keeps the region";
    EXPECT_TRUE((*batch)->extents.empty());
  }
  template <class Batch>
  static void expect_corrupt(const Result<std::shared_ptr<Batch>>& batch, const std::string& what) {
    EXPECT_EQ(batch.status().code(), Code::corrupt);
    EXPECT_EQ(batch.status().scope(), Scope::peer);
    EXPECT_EQ(batch.status().what(), what);
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(kBytes),
                         fixed_memory_ = std::vector<std::byte>(kBytes);
  memory::Registry registry_{11, nullptr};
  WireRegionTable published_{nullptr};
  WireKey key_, fixed_key_;
  const Registered region_ = add(memory_, {.read = true, .write = true}, key_),
                   fixed_ = add(fixed_memory_, {.read = false, .write = false}, fixed_key_);
  ServedTransfers served_{published_, kMost};
  base::Time now_{1h};
};

TEST_F(TcpServedTransfers, FindsThePut_WhenItsNextFrameComes) {
  const auto first = begin_put(1);
  EXPECT_FALSE(first->refused);
  EXPECT_EQ(first->use.memory()->key.id.serial, key_.id.serial);
  EXPECT_EQ(take(served_.find_or_create_put(put(1, kBytes - 8))), first);
  EXPECT_NE(begin_put(2), first);
  EXPECT_FALSE(served_.empty());
  served_.end_put(1);
  EXPECT_NE(begin_put(1), first) << "a new one of the number";
}

TEST_F(TcpServedTransfers, RefusesARequest_WhenThePeerMayNotMakeIt) {
  const auto both = [&](const Head& write, const Head& read, Code code, const std::string& what) {
    expect_refused(served_.find_or_create_put(write), code, what);
    EXPECT_TRUE(take(served_.find_or_create_put(write))->refused) << "and stays so";
    expect_refused(served_.add_answer(read), code, what);
    served_.clear();
  };
  Head write = put(1), read = get(1);
  write.token[15] ^= std::byte{1};
  read.token[15] ^= std::byte{1};
  both(write, read, Code::unreachable, "the region is not registered here");
  write = put(1);
  read = get(1);
  write.serial = read.serial = 4711;
  both(write, read, Code::unreachable, "the region is not registered here");
  both(request(FrameType::put, 1, fixed_key_), request(FrameType::get, 1, fixed_key_),
       Code::permission_denied, "not permitted on this region");
  for (const auto& [offset, bytes] : {std::pair(kBytes - 7, std::uint64_t{8}),
                                      {kBytes + 1, 1},
                                      {~std::uint64_t{0}, 8},
                                      {8, ~std::uint64_t{0}}})
    both(put(1, offset, bytes), get(1, offset, bytes), Code::invalid_argument,
         "a block leaves the region");
  EXPECT_EQ(retract(), Code::ok) << "nothing uses it";
}

TEST_F(TcpServedTransfers, ChecksEachSpanOfARequest) {
  Head write = put(1), read = get(1);
  write.spans.push_back({kBytes, 1});
  read.spans.push_back({kBytes, 1});
  expect_refused(served_.find_or_create_put(write), Code::invalid_argument,
                 "a block leaves the region");
  expect_refused(served_.add_answer(read), Code::invalid_argument, "a block leaves the region");
}

TEST_F(TcpServedTransfers, RefusesARequest_WhenTheRegionWasRetracted) {
  EXPECT_EQ(retract(), Code::ok);
  expect_refused(served_.find_or_create_put(put(1)), Code::unreachable,
                 "the region is not registered here");
  expect_refused(served_.add_answer(get(1)), Code::unreachable,
                 "the region is not registered here");
}

TEST_F(TcpServedTransfers, IsCorrupt_WhenAPutNamesTwoRegions) {
  begin_put(1);
  expect_corrupt(served_.find_or_create_put(request(FrameType::put, 1, fixed_key_)),
                 "a put to two regions");
}

/// The data of earlier frames may be on its way into memory.
TEST_F(TcpServedTransfers, IsCorrupt_WhenALaterFrameOfAPutIsNotPermitted) {
  begin_put(1)->announced = 8;
  expect_corrupt(served_.find_or_create_put(put(1, kBytes)),
                 "a put whose later frames are not permitted");
}

TEST_F(TcpServedTransfers, IsCorrupt_WhenThereAreTooMany) {
  for (std::uint64_t id = 1; id <= kMost; ++id) {
    begin_put(id);
    begin_get(id);
  }
  expect_corrupt(served_.find_or_create_put(put(9)), "more puts than may be in flight");
  expect_corrupt(served_.add_answer(get(9)), "more gets than may be in flight");
  EXPECT_TRUE(served_.find_or_create_put(put(kMost)).ok()) << "a further frame begins no put";
  served_.end_put(1);
  served_.end_answer(1);
  begin_put(9);
  begin_get(9);
}

/// The peer may have all of its bytes, and begin the next one.
TEST_F(TcpServedTransfers, DoesNotCountAGet_WhenItIsAssigned) {
  for (std::uint64_t id = 1; id <= kMost; ++id) begin_get(id)->all_assigned = id == 2;
  begin_get(9);
  EXPECT_FALSE(served_.add_answer(get(10)).ok());
}

TEST_F(TcpServedTransfers, IsCorrupt_WhenTwoGetsHaveOneNumber) {
  begin_get(1);
  expect_corrupt(served_.add_answer(get(1)), "two gets of one number");
}

TEST_F(TcpServedTransfers, AnswersWithTheMemoryOfEachSpan) {
  Head question = get(5, 16, 100);
  question.spans.push_back({4096, 8});
  question.summed = false;
  const auto answer = take(served_.add_answer(question));
  EXPECT_EQ(answer->type, FrameType::data);
  EXPECT_EQ(answer->id, 5u);
  ASSERT_EQ(answer->extents.size(), 2u);
  const auto at = reinterpret_cast<std::uint64_t>(memory_.data());
  EXPECT_EQ(answer->extents[0].here, at + 16);
  EXPECT_EQ(answer->extents[0].bytes, 100u);
  EXPECT_EQ(answer->extents[1].here, at + 4096);
  EXPECT_EQ(answer->extents[1].bytes, 8u);
  EXPECT_EQ(retract(), Code::busy);
}

TEST_F(TcpServedTransfers, ReadsNothing_WhenTheRequestHasAWrongSum) {
  Head question = get(1);
  question.summed = true;
  question.sum = question.sum_of_head + 1;
  expect_refused(served_.add_answer(question), Code::corrupt, wrong_sum(FrameType::get).what());
  question.id = 2;
  question.sum = question.sum_of_head;
  EXPECT_TRUE(take(served_.add_answer(question))->summed);
}

TEST_F(TcpServedTransfers, CancelsAnAnswer_WhileItIsThere) {
  const auto answer = begin_get(1);
  EXPECT_TRUE(served_.cancel_answer(1));
  EXPECT_TRUE(answer->canceled);
  served_.end_answer(1);
  EXPECT_FALSE(served_.cancel_answer(1));
  EXPECT_TRUE(served_.empty());
}

TEST_F(TcpServedTransfers, EndsAPut_WhenNoByteOfItComesForTooLong) {
  const auto put = begin_put(1);
  EXPECT_FALSE(pass(ServedTransfers::kMaxStall));
  put->progress.bytes += 1;  // begins anew
  EXPECT_FALSE(pass(ServedTransfers::kMaxStall));
  EXPECT_TRUE(pass(2s));
  EXPECT_TRUE(put->refused) << "later frames are discarded";
  EXPECT_TRUE(put->progress.revoked);
  EXPECT_EQ(put->status.code(), Code::timed_out);
  EXPECT_EQ(put->status.what(),
            "no byte of it has come for 60 s: the region is not kept for it any longer");
  EXPECT_EQ(put->use.memory(), nullptr);
  EXPECT_FALSE(pass(1h)) << "once";
  EXPECT_FALSE(served_.empty()) << "the last frame carries the error";
}

TEST_F(TcpServedTransfers, KeepsAPutThatStallsAsLongAsItIsAskedTo) {
  ServedTransfers patient(published_, kMost, 5min);
  const auto kept = take(patient.find_or_create_put(put(1)));
  EXPECT_FALSE(patient.end_stalled(now_).any_revoked);
  EXPECT_FALSE(patient.end_stalled(now_ + 299s).any_revoked);
  EXPECT_TRUE(patient.end_stalled(now_ + 301s).any_revoked);
  EXPECT_EQ(kept->status.what(),
            "no byte of it has come for 300 s: the region is not kept for it any longer");
}

/// A read of the peer's blocks nothing until the region is retracted.
TEST_F(TcpServedTransfers, KeepsAGetThatStalls_UntilItsRegionIsRetracted) {
  const auto get = begin_get(1);
  EXPECT_FALSE(pass(1h));
  EXPECT_EQ(retract(), Code::busy);
  EXPECT_TRUE(pass(1s)) << "it has stalled for long";
  EXPECT_TRUE(get->canceled);
  EXPECT_TRUE(get->progress.revoked);
  EXPECT_EQ(get->status.code(), Code::unreachable);
  EXPECT_EQ(get->status.what(), "its owner has deregistered the region");
  EXPECT_EQ(retract(), Code::ok);
}

TEST_F(TcpServedTransfers, EndsWhatStallsSooner_WhenTheRegionIsRetracted) {
  const auto put = begin_put(1);
  EXPECT_FALSE(pass(1s));
  EXPECT_EQ(retract(), Code::busy);
  EXPECT_FALSE(pass(ServedTransfers::kMaxStallRetracted));
  EXPECT_TRUE(pass(2s));
  EXPECT_EQ(put->status.code(), Code::unreachable);
  EXPECT_EQ(retract(), Code::ok);
}

TEST_F(TcpServedTransfers, EndsWhatGoesOn_WhenTheRegionWasRetractedLongAgo) {
  const auto put = begin_put(1);
  const auto get = begin_get(2);
  EXPECT_EQ(retract(), Code::busy);
  const auto go_on = [&](Duration time) {
    bool revoked = false;
    for (Duration step = 0s; step < time; step += 1s) {
      ++put->progress.bytes;
      ++get->progress.bytes;
      revoked |= pass(1s);
    }
    return revoked;
  };
  EXPECT_FALSE(go_on(ServedTransfers::kMaxRetracted));
  EXPECT_TRUE(go_on(2s));
  EXPECT_EQ(put->status.code(), Code::unreachable);
  EXPECT_EQ(get->status.code(), Code::unreachable);
  EXPECT_EQ(retract(), Code::ok);
}

TEST_F(TcpServedTransfers, EndsAllAtOnce_WhenTheRegionIsInvalidated) {
  const auto put = begin_put(1);
  const auto get = begin_get(2);
  EXPECT_EQ(retract(true), Code::busy);
  EXPECT_TRUE(served_.end_stalled(now_).any_revoked);
  EXPECT_EQ(put->status.what(), "its owner has deregistered the region");
  EXPECT_EQ(get->status.what(), "its owner has deregistered the region");
  EXPECT_EQ(retract(true), Code::ok);
}

TEST_F(TcpServedTransfers, KeepsTheFirstError_WhenAPutIsRevoked) {
  const auto put = begin_put(1);
  put->status = Status(Code::corrupt, Scope::request, "a wrong sum");
  EXPECT_EQ(retract(true), Code::busy);
  EXPECT_TRUE(served_.end_stalled(now_).any_revoked);
  EXPECT_EQ(put->status.what(), "a wrong sum");
}

/// Its last frame is under way and has said that all is well.
TEST_F(TcpServedTransfers, BreaksTheConnections_WhenThePeerDoesNotTakeTheLastFrame) {
  const auto get = begin_get(1);
  get->all_assigned = true;
  EXPECT_EQ(retract(true), Code::busy);
  EXPECT_TRUE(served_.end_stalled(now_).broken.ok()) << "it has its time";
  ServedTransfers::StallCheck check;
  for (int second = 0; second < 12 && check.broken.ok(); ++second)
    check = served_.end_stalled(now_ += 1s);
  EXPECT_GT(now_, base::Time{1h + ServedTransfers::kMaxStallRetracted});
  EXPECT_EQ(check.broken.code(), Code::disconnected);
  EXPECT_EQ(check.broken.what(),
            "the peer takes the bytes of a read too slowly: its owner has deregistered the region");
  EXPECT_FALSE(check.any_revoked);
  EXPECT_FALSE(get->canceled);
}

TEST_F(TcpServedTransfers, ListsWhatUsesARegion) {
  EXPECT_TRUE(served_.list(now_).empty());
  const auto put = begin_put(1);
  const auto get = begin_get(2);
  (void)take(served_.find_or_create_put(request(FrameType::put, 3, fixed_key_)));  // refused
  put->progress.bytes = 8;
  EXPECT_EQ(served_.list(now_).front().still, 0s) << "nothing was checked yet";
  pass(1s);
  get->progress.bytes = 16;
  pass(5s);
  const auto all = served_.list(now_ + 1s);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].serial, key_.id.serial);
  EXPECT_EQ(all[0].op, linkspan::Op::write);
  EXPECT_EQ(all[0].bytes, 8u);
  EXPECT_EQ(all[0].still, 6s);
  EXPECT_EQ(all[1].op, linkspan::Op::read);
  EXPECT_EQ(all[1].bytes, 16u);
  EXPECT_EQ(all[1].still, 5s);
}

TEST_F(TcpServedTransfers, LetsGoOfAllRegions_WhenItIsCleared) {
  begin_put(1);
  begin_get(2);
  EXPECT_EQ(retract(), Code::busy);
  served_.clear();
  EXPECT_TRUE(served_.empty());
  EXPECT_EQ(retract(), Code::ok);
}

}  // namespace tcp_served_transfers_test
}  // namespace linkspan::transport::tcp
