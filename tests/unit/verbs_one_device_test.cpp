// Tests an Endpoint with one RDMA device whose peer has registered its regions with different ones.
#include <gtest/gtest.h>

#include "tests/unit/verbs_fixture.hpp"

namespace linkspan::transport::verbs {
namespace verbs_one_device_test {

class Ends final : public CompletionSink {
 public:
  void complete(Completion&& end) override { all[end.cookie] = std::move(end.status); }
  std::map<std::uint64_t, Status> all;
};

/// Its link has one of the peer's devices at a time.
TEST(VerbsOneDevice, MovesBothOfTwoBatches_EachForADeviceOfItsOwn) {
  constexpr std::uint64_t kNear = 11, kFar = 77, kBytes = 8192, kPart = 4096;
  const Library library = take(Library::load(fake_verbs_file().c_str()));
  const auto fake = test::FakeVerbs::find(fake_verbs_file().c_str());
  ASSERT_TRUE(fake);
  fake.reset();
  const base::Log log(base::Level::error, base::stderr_sink());
  base::FakeClock clock;
  memory::Registry theirs(kFar, nullptr), ours(kNear, nullptr);
  std::vector<std::byte> first(kBytes), second(kBytes), mine(kBytes, std::byte{7});
  WaitingChannel to_far(kFar), to_near(kNear);
  VerbsTransport far(
      {.rails = take(open_rails(library, {}, log)), .incarnation = kFar, .clock = &clock});
  const auto key_without = [&](unsigned device, const memory::Region& region) {
    fake.lose(device);
    auto key = take(far.publish(region)).bytes;
    fake.reset();
    return key;
  };
  const auto one = take(theirs.add(first.data(), kBytes, {true, true}, false));
  const auto other = take(theirs.add(second.data(), kBytes, {true, true}, false));
  const auto key_of_one = key_without(0, one->region());
  const auto key_of_other = key_without(1, other->region());
  VerbsSettings one_device;
  one_device.ports = {{.device = "fake0"}};
  VerbsTransport near({.rails = take(open_rails(library, one_device, log)),
                       .settings = one_device,
                       .incarnation = kNear,
                       .clock = &clock});
  const auto local = take(ours.add(mine.data(), kBytes, {true, true}, false));
  (void)take(near.publish(local->region()));
  const auto deadline = base::Deadline::after(clock, 10s);
  const auto near_end = take(near.connect(far.address(), to_far, deadline));
  const auto far_end = take(far.connect(near.address(), to_near, deadline));
  const auto soon = base::Deadline::in(10s);
  const auto to_one = take(near.import_key({.bytes = key_of_one, .fds = {}}, soon));
  const auto to_other = take(near.import_key({.bytes = key_of_other, .fds = {}}, soon));
  const Block block{0, 0, kPart};
  std::uint64_t cookie = 0;
  for (const Mapping* const to : {to_one.get(), to_other.get()})
    must(near_end
             ->post({.op = Op::write,
                     .local = &local->region(),
                     .remote = to,
                     .shape = std::span(&block, 1),
                     .cookie = ++cookie})
             .status());
  const auto deliver = [](WaitingChannel& from, Endpoint& to) {
    while (!from.sent.empty()) {
      const auto message = std::move(from.sent.front());
      from.sent.pop_front();
      must(to.on_message(message.op, message.bytes, {}));
    }
  };
  Ends ends, far_ends;
  const auto progress = [&] {
    clock.advance(1ms);
    deliver(to_far, *far_end);
    deliver(to_near, *near_end);
    near_end->progress(ends);
    far_end->progress(far_ends);
  };
  for (const auto limit = base::Deadline::in(20s); ends.all.size() != 2 && !limit.passed();)
    progress();
  ASSERT_EQ(ends.all.size(), 2u);
  for (const auto& [id, end] : ends.all) EXPECT_TRUE(end.ok()) << id << ": " << end.to_string();
  for (const auto& memory : {first, second}) {
    EXPECT_EQ(memory[kPart - 1], std::byte{7});
    EXPECT_EQ(memory[kPart], std::byte{0});
  }
  near_end->peer_terminated();
  far_end->peer_terminated();
  for (const auto limit = base::Deadline::in(20s);
       !(near_end->drained() && far_end->drained()) && !limit.passed();)
    progress();
  fake.reset();
}

}  // namespace verbs_one_device_test
}  // namespace linkspan::transport::verbs
