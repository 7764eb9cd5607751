// Tests the regions of this side: who may still use one when it ends, and which keys a peer gets.
#include "engine/registration/registration_service.hpp"

#include "memory/descriptor.hpp"
#include "tests/unit/engine_pair.hpp"

namespace linkspan::engine {
namespace registration_service_test {

using namespace std::chrono_literals;
using control::FrameOp;
using test::impl_of, test::is, test::metric, test::must, test::RawPeer, test::take;

class Registrations : public test::EnginePair {
 protected:
  Region add(std::uint64_t bytes = 4096) {
    return take(HandleAccess::wrap<Region>(nullptr, service_.allocate_shared(bytes, {})));
  }
  static std::uint64_t serial_of(const Region& region) {
    return HandleAccess::registration(region)->id().serial;
  }
  std::optional<std::uint64_t> keys_sent() const {
    return metric(
        far_, R"(keys_sent_total{peer=")" + std::to_string(to_near_.id()) + R"(",name="near"})");
  }

  RegistrationService& service_ = impl_of(far_).services().registrations;
};

TEST_F(Registrations, HaveKeys_UntilTheirEnd) {
  std::vector<std::byte> memory(4096);
  const Region region = take(HandleAccess::wrap<Region>(
      nullptr, service_.add(memory.data(), memory.size(), RegionOptions{})));
  EXPECT_EQ(region.data(), memory.data());
  ASSERT_NE(service_.keys_of(serial_of(region)), nullptr);
  EXPECT_TRUE(is(service_.end(region, 10s, false), Code::ok));
  EXPECT_EQ(service_.keys_of(serial_of(region)), nullptr);
  EXPECT_TRUE(is(service_.end(region, 0s, false), Code::invalid_argument, "not registered"));
  EXPECT_EQ(metric(far_, "regions"), 0u);
}

TEST_F(Registrations, RefuseWhatIsNoRegionOfTheirEngine) {
  const Region other = take(near_.allocate_shared(4096));
  EXPECT_TRUE(is(service_.end(other, 0s, true), Code::invalid_argument, "not registered"));
  EXPECT_TRUE(is(service_.end({}, 0s, true), Code::invalid_argument, "not registered"));
  EXPECT_TRUE(is(near_.deregister(other), Code::ok));
  EXPECT_TRUE(is(service_.add(nullptr, 1, {}).status(), Code::invalid_argument));
}

TEST_F(Registrations, AreBusy_WhileAPeerMapsThem) {
  auto [region, remote] = share("data", 4096);
  EXPECT_TRUE(is(service_.end(region, 20ms, false), Code::busy));
  // It is neither found nor sent to anybody from the first try on.
  EXPECT_EQ(service_.keys_of(serial_of(region)), nullptr);
  EXPECT_TRUE(is(to_far_.lookup("data").status(), Code::not_found));
  EXPECT_TRUE(is(service_.end(region, 20ms, false), Code::busy));
  remote = {};
  EXPECT_TRUE(is(service_.end(region, 10s, false), Code::ok));
}

TEST_F(Registrations, EndOnce_WhenTheirTransferIsCanceled) {
  const Region region = add();
  const Transfer received = take(to_near_.recv(1, region.data(), 64, {.deadline = 1h}));
  EXPECT_TRUE(is(service_.end(region, 20ms, false), Code::busy));
  EXPECT_FALSE(received.done());
  EXPECT_TRUE(is(service_.end(region, 10s, true), Code::ok));
  EXPECT_TRUE(received.done());
  EXPECT_TRUE(is(received.status(), Code::canceled));
}

TEST_F(Registrations, EndAtOnce_CancelsAlsoWithoutTime) {
  const Region region = add();
  const Transfer received = take(to_near_.recv(1, region.data(), 64, {.deadline = 1h}));
  const Status first = service_.end(region, 0s, true);  // perhaps the peer answers that fast
  EXPECT_TRUE(is(received.wait(10s), Code::canceled));
  if (!first.ok()) {
    EXPECT_TRUE(is(service_.end(region, 10s, true), Code::ok));
  }
}

TEST_F(Registrations, AreRefusedAndNotKept_AfterClose) {
  const Region before = add();
  service_.close();
  std::vector<std::byte> memory(4096);
  EXPECT_TRUE(is(service_.add(memory.data(), memory.size(), {}).status(), Code::canceled,
                 "the Engine is closed"));
  EXPECT_TRUE(is(service_.allocate_shared(4096, {}).status(), Code::canceled));
  EXPECT_EQ(metric(far_, "regions"), 1u);
  EXPECT_TRUE(is(service_.end(before, 10s, false), Code::ok));
}

TEST_F(Registrations, CountTheKeysThatAPeerAsksFor) {
  EXPECT_TRUE(is(to_far_.lookup("data").status(), Code::not_found));
  EXPECT_EQ(keys_sent(), 0u);
  const auto [region, remote] = share("data", 4096);
  EXPECT_EQ(keys_sent(), 1u);
  (void)take(to_far_.lookup("data"));
  EXPECT_EQ(keys_sent(), 2u);
}

TEST_F(Registrations, GiveOfASetTheRegionOfThatSerial) {
  const Region regions[] = {add(4096), add(8192)}, other = add(12288);
  (void)take(far_.publish("set", regions));
  must(far_.publish("other", other));
  RawPeer raw(far_);
  const auto ask = [&raw](std::string_view name, std::uint64_t serial) {
    raw.send(FrameOp::import, 9, control::encode_import(name, serial));
  };
  ask("set", serial_of(regions[1]));
  const auto key = take(control::decode_imported(raw.next(FrameOp::imported).payload));
  const memory::Descriptor descriptor = take(memory::decode(key));
  EXPECT_EQ(descriptor.bytes, 8192u);
  EXPECT_EQ(descriptor.name, "set");
  ask("set", serial_of(other));
  EXPECT_TRUE(is(raw.next_error(), Code::not_found));
  ask("set", 0);
  EXPECT_TRUE(is(raw.next_error(), Code::invalid_argument));
}

TEST_F(Registrations, GiveByItsSerialOnlyWhatAMessageOffers) {
  RawPeer raw(far_);
  const Region region = add(), unsent = add();
  const Transfer sent = take(raw.peer().send(1, region.data(), 64, {.deadline = 1h}));
  const auto offer = take(control::decode_offer(raw.next(FrameOp::offer).payload));
  EXPECT_EQ(offer.serial, serial_of(region));
  raw.send(FrameOp::import, 9, control::encode_import({}, offer.serial));
  const auto key = take(control::decode_imported(raw.next(FrameOp::imported).payload));
  EXPECT_EQ(take(memory::decode(key)).id.serial, offer.serial);
  raw.send(FrameOp::import, 9, control::encode_import({}, serial_of(unsent)));
  EXPECT_TRUE(is(raw.next_error(), Code::not_found, "no such region was offered to you"));
  raw.leave();
  EXPECT_TRUE(is(sent.wait(10s), Code::disconnected));
}

}  // namespace registration_service_test
}  // namespace linkspan::engine
