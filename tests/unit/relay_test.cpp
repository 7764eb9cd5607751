// Tests copies from pinned memory to a GPU over its own link and another GPU's: at the copier, on
// two GPUs or over the simulated driver.
#include "copy/relay.hpp"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "copy/gpu_copier.hpp"
#include "tests/support/fake_cuda/controls.hpp"
#include "tests/support/held_stream.hpp"
#include "tests/support/kinds.hpp"
#include "tests/support/take.hpp"

namespace linkspan::copy {
namespace relay_test {

using namespace std::chrono_literals;
using test::Buffer, test::Expected, test::must, test::take;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kBytes = 61 * kMiB + 4099;

std::uint64_t address(const void* p) { return reinterpret_cast<std::uint64_t>(p); }

class RelayOnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    const Status two = test::need_gpus(2);
    if (!two.ok()) GTEST_SKIP() << two.to_string();
    device_ = take(test::topology()->activate(test::topology()->devices()[0].uuid));
    open();
    from_ = take(Buffer::create(MemoryKind::pinned, kBytes));
    to_ = take(Buffer::create(MemoryKind::device, kBytes));
    from_->fill(1);
    to_->fill(2);
  }
  void open() {
    copier_.reset();
    copier_ = take(GpuCopier::create(*device_, {.queues = 2}));
    copier_->set_relay(Relay::create(*test::topology(), *device_, 1));
    must(copier_->relay_status());
    ASSERT_EQ(copier_->links(), 2u);
  }

  /// Returns the piece from [from, from + bytes) of the source to `to` of the destination.
  Piece piece(std::uint64_t to, std::uint64_t from, std::uint64_t bytes) const {
    return {address(to_->data()) + to, address(from_->data()) + from, bytes};
  }
  static Order order(std::span<const Piece> pieces, unsigned lane = 0) {
    return {.method = Method::copy_engine, .pieces = pieces, .queue = lane, .to_gpu = true};
  }
  Status end_of(Ticket ticket, Duration within = 30s) {
    const auto deadline = base::Deadline::after(base::Clock::steady(), within);
    while (!deadline.passed()) {
      if (auto end = copier_->poll(ticket)) return *end;
      std::this_thread::yield();
    }
    return {Code::timed_out, Scope::request, "the order never ended"};
  }
  std::string difference(const std::vector<Expected>& expected) const {
    return to_->difference(2, expected);
  }

  const cuda::Device* device_ = nullptr;
  std::unique_ptr<Buffer> from_, to_;
  std::unique_ptr<GpuCopier> copier_;
};

TEST_F(RelayOnDevice, EveryByteArrivesAndNoOther) {
  const std::vector<Expected> parts{{1, 1, 7, kMinRelayBytes},
                                    {16 * kMiB + 77, 1, 40 * kMiB, 5},
                                    {17 * kMiB + 3, 1, 16 * kMiB + 13, kMinRelayBytes - 1},
                                    {34 * kMiB + 511, 1, 33 * kMiB + 1, 27 * kMiB + 1023}};
  std::vector<Piece> pieces;
  for (const Expected& e : parts) pieces.push_back(piece(e.offset, e.from, e.bytes));
  const Ticket ticket = take(copier_->start(order(pieces)));
  EXPECT_EQ(end_of(ticket).to_string(), "ok");
  EXPECT_EQ(difference(parts), "");
  EXPECT_EQ(from_->difference(1, {}), "");
}

TEST_F(RelayOnDevice, ManyOrdersInFlightEndInTheOrderOfTheirLane) {
  // Slots are used again and again, by pieces of other sizes.
  std::vector<Ticket> tickets;
  std::vector<Expected> parts;
  for (unsigned i = 0; i < 12; ++i) {
    // Three thirds, each written four times, over the same links, with the same bytes.
    const unsigned third = i % 3;
    const std::uint64_t at = third * 20 * kMiB, bytes = kMinRelayBytes + third * 1234567 + 1;
    parts.push_back({at, 1, at + 3, bytes});
    const Piece one = piece(at, at + 3, bytes);
    tickets.push_back(take(copier_->start(order({&one, 1}, third))));
  }
  for (std::size_t i = tickets.size() - 2; i < tickets.size(); ++i)  // the last of each lane
    EXPECT_EQ(end_of(tickets[i]).to_string(), "ok");
  for (std::size_t i = 0; i < tickets.size() - 2; ++i) {
    const auto end = copier_->poll(tickets[i]);
    EXPECT_TRUE(end && end->ok()) << i;
  }
  EXPECT_EQ(difference(parts), "");
  EXPECT_EQ(copier_->expected({}), base::Time::max());
}

TEST_F(RelayOnDevice, AnAbortedOrderRunsToItsEndAndWritesNothingAfterIt) {
  const Piece all = piece(0, 0, kBytes);
  const Ticket ticket = take(copier_->start(order({&all, 1})));
  copier_->abort(ticket);
  EXPECT_EQ(end_of(ticket).to_string(), "ok");
  to_->fill(3);
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(to_->difference(3, {}), "");
}

TEST_F(RelayOnDevice, NothingMovesBeforeAUsersStreamAndItGoesOnAfterAll) {
  const std::vector<Expected> parts{{5, 3, 1, 40 * kMiB}};
  const Piece all = piece(5, 1, 40 * kMiB);
  // Made before the stream is held, for giving memory back would wait for it.
  auto read = take(Buffer::create(MemoryKind::pinned, kBytes));
  auto copied = take(Buffer::create(MemoryKind::pinned, kBytes));
  auto past = take(Buffer::create(MemoryKind::device, kBytes));
  for (const auto* guarded : {&read, &copied}) (*guarded)->fill(2);
  const cuda::DeviceScope scope = take(device_->enter());
  const auto other = take(cuda::Stream::create(scope));
  auto held = take(cuda::Event::create(scope)), free = take(cuda::Event::create(scope));
  must(free.record(scope, other.get()));
  test::HeldStream user;
  const auto stream = static_cast<cuda::CUstream>(user.order().handle);
  user.hold();
  must(held.record(scope, stream));

  std::optional<cuda::PooledEvent> release;
  Order behind = order({&all, 1});
  behind.after = &held;
  behind.stream = 1;
  behind.release = &release;
  const Ticket ticket = take(copier_->start(behind));
  ASSERT_TRUE(release.has_value());
  must(cuda::make_wait(scope, stream, **release));
  user.copy(copied->data(), to_->data(), kBytes);

  // Orders after no stream, and those after another stream, pass it.
  const Piece to_past{address(past->data()), address(from_->data()), 30 * kMiB};
  Order behind_other = order({&to_past, 1});
  behind_other.after = &free;
  behind_other.stream = 2;
  for (const Order& each : {order({&to_past, 1}), behind_other})
    EXPECT_EQ(end_of(take(copier_->start(each)), 10s).to_string(), "ok");
  std::this_thread::sleep_for(20ms);
  EXPECT_FALSE(copier_->poll(ticket).has_value());
  const Piece back{address(read->data()), address(to_->data()), kBytes};
  EXPECT_EQ(end_of(take(copier_->start({.method = Method::copy_engine, .pieces = {&back, 1}})), 10s)
                .to_string(),
            "ok");
  EXPECT_EQ(read->difference(2, {}), "");

  from_->fill(3);  // what the stream would do meanwhile
  user.go_on();
  EXPECT_EQ(end_of(ticket).to_string(), "ok");
  EXPECT_EQ(difference(parts), "");
  user.synchronize();
  EXPECT_EQ(copied->difference(2, parts), "");
}

TEST_F(RelayOnDevice, EachLinkHasAnEqualShare) {
  const auto relay = take(Relay::create(*test::topology(), *device_, 15));
  EXPECT_EQ(relay->links(), test::topology()->devices().size());
  EXPECT_EQ(relay->share(kMinRelayBytes - 1), 0u);
  const std::uint64_t share = relay->share(1024 * kMiB), each = 1024 * kMiB / relay->links();
  EXPECT_LE(1024 * kMiB - share - each, kMiB);
  EXPECT_EQ(Relay::create(*test::topology(), *device_, 0).status().code(), Code::unsupported);
}

/// Releases the simulated driver's devices at the end, held or lost.
class Control {
 public:
  Control() : fake_(test::FakeCuda::find()) {}
  ~Control() {
    if (fake_) fake_.reset();
  }
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;
  const test::FakeCuda& operator*() const { return fake_; }
  const test::FakeCuda* operator->() const { return &fake_; }

 private:
  const test::FakeCuda fake_;
};

TEST_F(RelayOnDevice, HalfOfALargeCopyWaitsForTheOtherGpu) {
  const Control fake;
  if (!*fake) GTEST_SKIP() << "needs the simulated driver";
  fake->hold(1, 1);
  const Piece large = piece(0, 0, kMinRelayBytes), small = piece(17 * kMiB, 0, kMinRelayBytes - 1);
  const Ticket relayed = take(copier_->start(order({&large, 1}, 0)));
  const Ticket direct = take(copier_->start(order({&small, 1}, 1)));
  Order back = order({&large, 1}, 1);
  const Piece reversed{large.from, large.to, large.bytes};
  back.pieces = {&reversed, 1};
  back.to_gpu = false;
  EXPECT_EQ(end_of(direct).to_string(), "ok");
  EXPECT_EQ(end_of(relayed, 300ms).code(), Code::timed_out);  // its own half is there long before
  EXPECT_EQ(difference({{0, 1, 0, kMinRelayBytes / 2}, {17 * kMiB, 1, 0, kMinRelayBytes - 1}}), "");
  fake->hold(1, 0);
  EXPECT_EQ(end_of(relayed).to_string(), "ok");
  fake->hold(1, 1);
  EXPECT_EQ(end_of(take(copier_->start(back))).to_string(), "ok");
}

TEST_F(RelayOnDevice, ALostLenderEndsWhatItHadInHandAndTheOthersGoDirectly) {
  const Control fake;
  if (!*fake) GTEST_SKIP() << "needs the simulated driver";
  fake->hold(1, 1);
  const Piece all = piece(0, 0, 60 * kMiB), small = piece(60 * kMiB, 0, 100);
  const Ticket relayed = take(copier_->start(order({&all, 1}, 0)));
  const Ticket direct = take(copier_->start(order({&small, 1}, 1)));
  fake->lose(1);
  const Status end = end_of(relayed, 10s);
  EXPECT_EQ(end.code(), Code::cuda);
  EXPECT_NE(end.what().find("700"), std::string::npos) << end.what();
  EXPECT_EQ(end_of(direct, 10s).to_string(), "ok");
  to_->fill(2);
  EXPECT_EQ(end_of(take(copier_->start(order({&all, 1})))).to_string(), "ok");
  EXPECT_EQ(difference({{0, 1, 0, 60 * kMiB}}), "");
}

TEST_F(RelayOnDevice, ALenderThatFailsInTheMidstIsNotAskedAgain) {
  const Control fake;
  if (!*fake) GTEST_SKIP() << "needs the simulated driver";
  fake->lose(1);
  const Piece all = piece(0, 0, kBytes);
  // The donor's first copy is refused, so all bytes go directly. Its lost context ends no order,
  // because it had none of their bytes.
  EXPECT_EQ(end_of(take(copier_->start(order({&all, 1})))).to_string(), "ok");
  EXPECT_EQ(difference({{0, 1, 0, kBytes}}), "");
}

TEST_F(RelayOnDevice, KeepsTheDepthOfItsStreams) {
  const Control fake;
  if (!*fake) GTEST_SKIP() << "needs the simulated driver";
  fake->hold(0, 1);
  fake->hold(1, 1);
  const Piece all = piece(0, 0, 2 * kRelayChunk);  // a chunk each
  std::vector<Ticket> tickets;
  Status full;
  while (full.ok() && tickets.size() < 1000) {
    auto ticket = copier_->start(order({&all, 1}, static_cast<unsigned>(tickets.size())));
    full = ticket.status();
    if (ticket.ok()) tickets.push_back(*ticket);
  }
  EXPECT_EQ(full.code(), Code::no_resource);
  EXPECT_EQ(tickets.size(), Relay::kChunks);
  const Piece small = piece(0, 0, 100);
  tickets.push_back(take(copier_->start(order({&small, 1}))));
  fake->lose(0);
  for (const Ticket ticket : tickets) EXPECT_EQ(end_of(ticket, 10s).code(), Code::cuda);
}

TEST_F(RelayOnDevice, LeavesNothingBehindAndMakesNothingOnTheWay) {
  const Control fake;
  if (!*fake) GTEST_SKIP() << "needs the simulated driver";
  copier_.reset();
  fake->reset();
  const auto balance = [&](const char* made, const char* ended) {
    return static_cast<std::int64_t>(fake->call_count(made) - fake->call_count(ended));
  };
  open();
  const auto made = [&] {
    return std::array{fake->call_count("cuMemAlloc"), fake->call_count("cuEventCreate"),
                      fake->call_count("cuStreamCreateWithPriority"),
                      fake->call_count("cuMemHostAlloc")};
  };
  const auto before = made();
  const Piece all = piece(0, 0, kBytes);
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(end_of(take(copier_->start(order({&all, 1})))).to_string(), "ok");
  EXPECT_EQ(made(), before);
  for (const char* waits : {"cuStreamSynchronize", "cuCtxSynchronize"})
    EXPECT_LE(fake->call_count(waits), 1u) << waits;  // of create()
  copier_.reset();
  EXPECT_EQ(balance("cuMemAlloc", "cuMemFree"), 0);
  EXPECT_EQ(balance("cuEventCreate", "cuEventDestroy"), 0);
  EXPECT_EQ(balance("cuStreamCreateWithPriority", "cuStreamDestroy"), 0);
}

}  // namespace relay_test
}  // namespace linkspan::copy
