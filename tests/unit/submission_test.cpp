// Tests the begin of transfers: what is refused, and that what is accepted moves its bytes and no
// others.
#include "engine/transfers/submission.hpp"

#include <cstring>

#include "tests/unit/engine_pair.hpp"

namespace linkspan::engine {
namespace submission_test {

using namespace std::chrono_literals;
using test::impl_of, test::is, test::must, test::take;

constexpr std::uint64_t kPage = 1024, kPages = 8, kBytes = kPages * kPage;
const std::vector<Block> kFew = {{0, 0, 8}};

class Submissions : public test::EnginePair {
 protected:
  explicit Submissions(std::string_view address = {}) : EnginePair(address) {
    for (std::uint64_t i = 0; i < kBytes; ++i) bytes(local_)[i] = byte(i);
  }
  static unsigned char* bytes(const Region& region) {
    return static_cast<unsigned char*>(region.data());
  }
  static unsigned char byte(std::uint64_t i) {
    return static_cast<unsigned char>(1 + (i * 7 + i / kPage) % 255);
  }
  /// Returns whether those bytes of the shared region came from `from` on, or are untouched.
  static bool holds(const Region& region, std::uint64_t at, std::uint64_t count,
                    std::optional<std::uint64_t> from) {
    for (std::uint64_t i = 0; i < count; ++i)
      if (bytes(region)[at + i] != (from ? byte(*from + i) : 0)) return false;
    return true;
  }
  const memory::Registration& registration() const { return *HandleAccess::registration(local_); }
  Status wait(const Submission::Submitted& transfer) {
    return transfer.ok() ? impl_of(near_).wait(**transfer, 10s) : transfer.status();
  }
  Submission::Submitted write(const Shape& shape, const TransferOptions& options = {}) {
    return submission_.submit(to_far_.id(), Op::write, local_, remote_, shape, options);
  }
  Submission::Submitted write(const Block& block, const TransferOptions& options = {}) {
    return write(std::span(&block, 1), options);
  }
  Status resolved(std::uint64_t peer, const Region& local, const RemoteRegion& remote) {
    return submission_.resolve(peer, Op::write, local, remote).status();
  }
  /// Checks that what was refused keeps no user of the region and has written nothing.
  void expect_nothing_begun() {
    EXPECT_EQ(registration().users(), 0u);
    EXPECT_TRUE(holds(target_, 0, kBytes, std::nullopt));
  }

  const Submission& submission_ = impl_of(near_).services().submission;
  Region local_ = take(near_.allocate_shared(kBytes));
  std::pair<Region, RemoteRegion> shared_ = share("target", kBytes);
  const Region& target_ = shared_.first;
  const RemoteRegion& remote_ = shared_.second;
};

TEST_F(Submissions, FindBothRegions) {
  const auto found = take(submission_.resolve(to_far_.id(), Op::read, local_, remote_));
  EXPECT_EQ(found.peer, to_far_.id());
  EXPECT_EQ(found.op, Op::read);
  EXPECT_EQ(found.local.get(), &registration());
  EXPECT_EQ(found.remote, HandleAccess::imported(remote_));
  EXPECT_NE(found.remote->mappings[found.transport], nullptr);
}

TEST_F(Submissions, RefuseRegionsThatAreNotTheirs) {
  const std::uint64_t peer = to_far_.id();
  EXPECT_TRUE(is(resolved(peer, local_, {}), Code::invalid_argument, "no remote region was given"));
  EXPECT_TRUE(is(resolved(peer, {}, remote_), Code::invalid_argument, "no local region was given"));
  EXPECT_TRUE(is(resolved(peer, target_, remote_), Code::invalid_argument,
                 "the local region is not registered in this Engine"));
  EXPECT_TRUE(is(resolved(peer + 1, local_, remote_), Code::invalid_argument,
                 "\"target\" is of peer " + std::to_string(peer) + ", not of peer " +
                     std::to_string(peer + 1)));
  must(near_.publish("mine", local_));
  const RemoteRegion of_far = take(to_near_.lookup("mine"));
  EXPECT_TRUE(
      is(resolved(peer, local_, of_far), Code::invalid_argument, "is of another Engine's peer"));
}

TEST_F(Submissions, RefuseARegionThatNoTransportReaches) {
  auto unreached = std::make_shared<ImportedRegion>();
  unreached->peer = to_far_.id();
  unreached->name = "far away";
  unreached->mappings.resize(HandleAccess::imported(remote_)->mappings.size());
  const RemoteRegion remote =
      take(HandleAccess::wrap<RemoteRegion>(HandleAccess::impl(near_), Result(unreached)));
  EXPECT_TRUE(is(resolved(to_far_.id(), local_, remote), Code::unreachable,
                 "no transport reaches \"far away\""));
}

TEST_F(Submissions, RefuseADeregisteredRegion) {
  const Prepared prepared = take(to_far_.prepare(Op::write, local_, remote_, kFew));
  const auto at = take(submission_.resolve(to_far_.id(), Op::write, local_, remote_));
  must(near_.deregister(local_));
  EXPECT_TRUE(is(resolved(to_far_.id(), local_, remote_), Code::invalid_argument));
  EXPECT_TRUE(is(prepared.post().status(), Code::invalid_argument, "not registered"));
  EXPECT_TRUE(
      is(submission_
             .copy(to_far_.id(), Op::write, registration().id(), at.remote, at.transport, {0, 0, 8})
             .status(),
         Code::invalid_argument, "not registered"));
}

TEST_F(Submissions, RefuseShapesThatLeaveARegion) {
  constexpr std::uint64_t kHuge = ~std::uint64_t{0};
  for (const Block& block : {Block{kBytes, 0, 1}, Block{0, kBytes, 1}, Block{0, 0, kBytes + 1},
                             Block{kHuge, 0, 2}, Block{0, kHuge, 2}, Block{8, 8, kHuge}})
    EXPECT_TRUE(is(write(block).status(), Code::invalid_argument)) << block.local_offset;
  const std::uint32_t in[] = {0, kPages - 1}, out[] = {0, kPages};
  EXPECT_TRUE(is(write(Pages{.page_bytes = kPage, .local_index = in, .remote_index = out}).status(),
                 Code::invalid_argument));
  EXPECT_TRUE(is(write(Pages{.page_bytes = kPage, .local_index = out, .remote_index = in}).status(),
                 Code::invalid_argument));
  EXPECT_TRUE(is(
      write(Pages{.page_bytes = kPage, .local_index = in, .remote_index = std::span(in).first(1)})
          .status(),
      Code::invalid_argument));
  Strides strides{.bytes = kPage};
  strides.levels[0] = {.count = 2, .local_step = kPage, .remote_step = kBytes};
  EXPECT_TRUE(is(write(strides).status(), Code::invalid_argument));
  expect_nothing_begun();
}

TEST_F(Submissions, MoveWhatTheShapeSays) {
  EXPECT_TRUE(is(wait(write(Block{kPage, 0, kPage + 3})), Code::ok));
  EXPECT_TRUE(holds(target_, 0, kPage + 3, kPage));
  EXPECT_TRUE(holds(target_, kPage + 3, kPage, std::nullopt));
  const std::uint32_t from[] = {7, 2}, to[] = {4, 6};
  EXPECT_TRUE(is(wait(write(Pages{.page_bytes = kPage, .local_index = from, .remote_index = to})),
                 Code::ok));
  EXPECT_TRUE(holds(target_, 4 * kPage, kPage, 7 * kPage));
  EXPECT_TRUE(holds(target_, 6 * kPage, kPage, 2 * kPage));
  EXPECT_TRUE(holds(target_, 5 * kPage, kPage, std::nullopt));
  EXPECT_TRUE(is(wait(write(Block{0, 0, 0})), Code::ok));
  EXPECT_EQ(registration().users(), 0u);
}

TEST_F(Submissions, MoveStrides) {
  Strides strides{.bytes = 16, .local_base = 32, .remote_base = 1};
  strides.levels[0] = {.count = 3, .local_step = 64, .remote_step = 100};
  strides.levels[1] = {.count = 2, .local_step = kPage, .remote_step = 2 * kPage};
  EXPECT_TRUE(is(wait(write(strides)), Code::ok));
  for (std::uint64_t i = 0; i < 3; ++i)
    for (std::uint64_t j = 0; j < 2; ++j) {
      const std::uint64_t at = 1 + 100 * i + 2 * kPage * j;
      EXPECT_TRUE(holds(target_, at, 16, 32 + 64 * i + kPage * j)) << i << ' ' << j;
      EXPECT_TRUE(holds(target_, at + 16, 84, std::nullopt)) << i << ' ' << j;
    }
  strides.levels[2].count = 0;
  const auto none = write(strides);
  EXPECT_TRUE(is(wait(none), Code::ok));
  EXPECT_EQ((*none)->bytes, 0u);
}

TEST_F(Submissions, ReadWhatThePeerHas) {
  std::memcpy(bytes(target_) + 100, bytes(local_), 50);
  std::memset(local_.data(), 0, kBytes);
  const Block block{7, 100, 50};
  EXPECT_TRUE(is(
      wait(submission_.submit(to_far_.id(), Op::read, local_, remote_, std::span(&block, 1), {})),
      Code::ok));
  EXPECT_TRUE(holds(local_, 0, 7, std::nullopt));
  EXPECT_TRUE(holds(local_, 7, 50, 0));
  EXPECT_TRUE(holds(local_, 57, kBytes - 57, std::nullopt));
}

TEST_F(Submissions, EndAsDenied_WhenTheOwnerDoesNotPermitThem) {
  const auto read_only = share("read only", kBytes, {.read = true});
  const Block block{0, 0, 8};
  const auto denied = submission_.submit(to_far_.id(), Op::write, local_, read_only.second,
                                         std::span(&block, 1), {});
  EXPECT_TRUE(is(wait(denied), Code::permission_denied));
  EXPECT_EQ(registration().users(), 0u);
  EXPECT_TRUE(holds(read_only.first, 0, kBytes, std::nullopt));
}

TEST_F(Submissions, RefuseAPathThatWasNotRequired) {
  const std::string path = take(to_far_.explain(Op::write, local_, remote_, 1, kPage)).path;
  EXPECT_TRUE(is(write(Block{0, 0, 8}, {.require = "cuda_ipc"}).status(), Code::unsupported,
                 "path \"cuda_ipc\" was required, this transfer takes \"" + path + "\": "));
  EXPECT_TRUE(is(write(Block{0, 0, 8}, {.require = "tcp"}).status(), Code::unsupported,
                 "; the peer has given no key of tcp for \"target\": it lacks the transport"));
  const Prepared prepared = take(to_far_.prepare(Op::write, local_, remote_, kFew));
  EXPECT_TRUE(is(prepared.post({.require = "!" + path}).status(), Code::unsupported));
  expect_nothing_begun();
  EXPECT_TRUE(is(wait(write(Block{0, 0, 8}, {.require = path})), Code::ok));
  EXPECT_TRUE(is(wait(write(Block{0, 0, 8}, {.require = "local"})), Code::ok));
}

TEST_F(Submissions, RefuseOptionsThatThePathLacks) {
  const std::vector<std::byte> longest(Inbox::kMaxMessage + 1);
  EXPECT_TRUE(is(write(Block{0, 0, 8}, {.notification = longest}).status(), Code::invalid_argument,
                 "a notification of 65537 bytes; at most 65536"));
  EXPECT_TRUE(is(write(Block{0, 0, 8}, {.checksum = true}).status(), Code::unsupported,
                 "makes no checksums"));
  expect_nothing_begun();
  EXPECT_TRUE(is(
      wait(write(Block{0, 0, 8}, {.notification = std::span(longest).first(Inbox::kMaxMessage)})),
      Code::ok));
  const auto notified = far_.notifications(10s);
  ASSERT_EQ(notified.size(), 1u);
  EXPECT_EQ(notified[0].bytes.size(), Inbox::kMaxMessage);
}

TEST_F(Submissions, ReleaseTheRegion_WhenThePeerIsClosed) {
  must(to_far_.close());
  EXPECT_TRUE(is(write(Block{0, 0, 8}).status(), Code::disconnected));
  expect_nothing_begun();
}

TEST_F(Submissions, PrepareACopyOfTheLists) {
  std::uint32_t from[] = {7, 2, 3}, to[] = {0, 1, 2};
  const Pages pages{.page_bytes = kPage, .local_index = from, .remote_index = to};
  const auto prepared = take(submission_.prepare(to_far_.id(), Op::write, local_, remote_, pages));
  EXPECT_EQ(prepared->size.bytes, 3 * kPage);
  for (std::uint32_t& each : from) each = 6;
  for (std::uint32_t& each : to) each = 6;
  const std::uint32_t second[] = {1};
  const auto part = submission_.post(*prepared, second, {});
  EXPECT_TRUE(is(wait(part), Code::ok));
  EXPECT_EQ((*part)->bytes, kPage);
  EXPECT_TRUE(holds(target_, kPage, kPage, 2 * kPage));
  EXPECT_TRUE(holds(target_, 0, kPage, std::nullopt));
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(is(wait(submission_.post(prepared, {})), Code::ok));
  EXPECT_TRUE(holds(target_, 0, kPage, 7 * kPage));
  EXPECT_TRUE(holds(target_, 2 * kPage, kPage, 3 * kPage));
  EXPECT_TRUE(holds(target_, 3 * kPage, kBytes - 3 * kPage, std::nullopt));
}

TEST_F(Submissions, RefuseSubsetsThatWereNotPrepared) {
  const std::uint32_t list[] = {0, 1}, beyond[] = {0, 2}, first[] = {0};
  Pages pages{.page_bytes = kPage, .local_index = list, .remote_index = list};
  const auto prepared = take(submission_.prepare(to_far_.id(), Op::write, local_, remote_, pages));
  EXPECT_TRUE(is(submission_.post(*prepared, beyond, {}).status(), Code::invalid_argument));
  const Block block{0, 0, 8};
  const auto blocks =
      take(submission_.prepare(to_far_.id(), Op::write, local_, remote_, std::span(&block, 1)));
  EXPECT_TRUE(is(submission_.post(*blocks, first, {}).status(), Code::invalid_argument,
                 "without page lists"));
  pages.indices_on_gpu = true;
  EXPECT_TRUE(is(submission_.prepare(to_far_.id(), Op::write, local_, remote_, pages).status(),
                 Code::unsupported, "page indices on a GPU are not prepared"));
  expect_nothing_begun();
}

TEST_F(Submissions, CopyOneBlock) {
  const auto at = take(submission_.resolve(to_far_.id(), Op::write, local_, remote_));
  const auto copy = [&](const Block& block) {
    return submission_.copy(to_far_.id(), Op::write, registration().id(), at.remote, at.transport,
                            block);
  };
  EXPECT_TRUE(is(copy({0, 1, kBytes}).status(), Code::invalid_argument));
  expect_nothing_begun();
  EXPECT_TRUE(is(wait(copy({5, 100, 70})), Code::ok));
  EXPECT_TRUE(holds(target_, 100, 70, 5));
}

TEST_F(Submissions, WriteToAll_EachCheckedAgainstItsOwnSize) {
  const auto small = share("small", kPage), large = share("large", kBytes);
  const RemoteRegion targets[] = {remote_, small.second, {}, large.second};
  const Block all{0, 0, kBytes};
  const auto written = submission_.write_to_all(local_, targets, std::span(&all, 1), {});
  ASSERT_EQ(written.size(), 4u);
  EXPECT_TRUE(is(wait(written[0]), Code::ok));
  EXPECT_TRUE(is(written[1].status(), Code::invalid_argument));
  EXPECT_TRUE(is(written[2].status(), Code::invalid_argument, "no remote region was given"));
  EXPECT_TRUE(is(wait(written[3]), Code::ok));
  EXPECT_TRUE(holds(target_, 0, kBytes, 0));
  EXPECT_TRUE(holds(small.first, 0, kPage, std::nullopt));
  EXPECT_TRUE(holds(large.first, 0, kBytes, 0));
}

TEST_F(Submissions, WriteToAll_NotifyEachAndTakeTheRequiredPath) {
  const auto other = share("other", kBytes);
  const RemoteRegion targets[] = {remote_, other.second};
  const std::byte note[] = {std::byte{3}};
  const std::span<const Block> few(kFew);
  const auto written = submission_.write_to_all(local_, targets, few, {.notification = note});
  for (const auto& each : written) EXPECT_TRUE(is(wait(each), Code::ok));
  std::size_t notified = 0;
  EXPECT_TRUE(test::eventually([&] { return (notified += far_.notifications().size()) == 2; }));
  for (const auto& each : submission_.write_to_all(local_, targets, few, {.require = "cuda_ipc"}))
    EXPECT_TRUE(is(each.status(), Code::unsupported, "path \"cuda_ipc\" was required"));
  EXPECT_EQ(registration().users(), 0u);
}

class SubmissionsOverTcp : public Submissions {
 protected:
  SubmissionsOverTcp() : Submissions("tcp:127.0.0.1:0") {}
};

TEST_F(SubmissionsOverTcp, MayHaveAChecksumAndAreNotLocal) {
  EXPECT_TRUE(is(wait(write(Block{0, 0, kBytes}, {.checksum = true})), Code::ok));
  EXPECT_TRUE(holds(target_, 0, kBytes, 0));
  EXPECT_TRUE(is(write(Block{0, 0, 8}, {.require = "local"}).status(), Code::unsupported,
                 "path \"local\" was required, this transfer takes \"tcp"));
  EXPECT_TRUE(is(wait(write(Block{0, 0, 8}, {.require = "tcp"})), Code::ok));
}

TEST_F(Submissions, EndAtTheirDeadlineOrAtTheEngines) {
  const Engine hasty = take(Engine::open({.use_gpu = false, .transfer_deadline = 7s}));
  const Submission& submission = impl_of(hasty).services().submission;
  const base::Time now = base::Clock::steady().now();
  EXPECT_EQ(submission.deadline_of({}, now), now + 7s);
  EXPECT_EQ(submission.deadline_of({.deadline = 1ns}, now), now + 1ns);
  EXPECT_EQ(submission.deadline_of({.deadline = Duration::max()}, now), base::Time::max());
}

TEST_F(Submissions, ExplainTheirPath) {
  auto between = take(submission_.resolve(to_far_.id(), Op::write, local_, remote_));
  const auto explained = take(submission_.explain(between, {.blocks = 1, .bytes = kPage}));
  EXPECT_FALSE(explained.path.empty());
  EXPECT_FALSE(explained.reason.empty());
  between.peer = 99;
  EXPECT_TRUE(is(submission_.explain(between, {.blocks = 1, .bytes = kPage}).status(),
                 Code::disconnected, "peer 99 is gone"));
}

}  // namespace submission_test
}  // namespace linkspan::engine
