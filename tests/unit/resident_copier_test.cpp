// Tests ResidentCopier, on the GPU of this machine or over the simulated driver.
#include "copy/resident_copier.hpp"

#include <cstring>
#include <thread>

#include "tests/support/take.hpp"
#include "tests/unit/cuda_fixture.hpp"

namespace linkspan::copy {
namespace resident_copier_test {

using cuda::pattern;
using std::chrono::milliseconds, std::chrono::microseconds, std::chrono::seconds;
using test::take;

constexpr std::size_t kBytes = ResidentCopier::kMaxBytes + 4096;
constexpr auto kGuard = std::byte{0xEE};

class ResidentOnDevice : public cuda::OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped()) return;
    if (!device->kernels().ok()) GTEST_SKIP() << "needs a build with kernels";
    copier = take(ResidentCopier::create(*device));
    for (auto* each : {&source, &target})
      each->emplace(take(cuda::PinnedBuffer::create(*scope, kBytes)));
    on_gpu.emplace(take(cuda::DeviceBuffer::create(*scope, kBytes)));
  }
  void TearDown() override {
    copier.reset();
    on_gpu.reset();
    source.reset();
    target.reset();
  }
  Result<Ticket> start(std::uint64_t to, std::uint64_t from, std::uint64_t bytes) {
    const Piece piece{.to = to, .from = from, .bytes = bytes};
    return copier->start({.method = Method::resident, .pieces = {&piece, 1}});
  }
  Status end_of(Ticket ticket) {
    const auto deadline = base::Deadline::after(base::Clock::steady(), seconds(30));
    while (!deadline.passed()) {
      if (auto end = copier->poll(ticket)) return *end;
      std::this_thread::yield();
    }
    return {Code::timed_out, Scope::request, "the order never ended"};
  }
  Status run(std::uint64_t to, std::uint64_t from, std::uint64_t bytes) {
    const auto ticket = start(to, from, bytes);
    return ticket.ok() ? end_of(*ticket) : ticket.status();
  }
  std::uint64_t target_at(std::size_t offset) const { return target->device_address() + offset; }
  std::uint64_t source_at(std::size_t offset) const { return source->device_address() + offset; }
  /// Fills the source with the pattern of `seed`, and the target with guards.
  void fill(unsigned seed) {
    for (std::size_t i = 0; i < kBytes; ++i) source->data()[i] = pattern(i, seed);
    std::fill_n(target->data(), kBytes, kGuard);
  }
  void expect(std::size_t to, std::size_t from, std::size_t bytes, unsigned seed) const {
    for (std::size_t i = 0; i < kBytes; ++i) {
      const bool inside = i >= to && i - to < bytes;
      const std::byte want = inside ? pattern(from + (i - to), seed) : kGuard;
      ASSERT_EQ(target->data()[i], want) << "byte " << i << " of " << bytes << " at " << to;
    }
  }

  std::unique_ptr<ResidentCopier> copier;
  std::optional<cuda::PinnedBuffer> source, target;
  std::optional<cuda::DeviceBuffer> on_gpu;
};

TEST_F(ResidentOnDevice, CopiesExactlyThePieceThroughTheGpusMemory) {
  unsigned seed = 0;
  for (const std::size_t bytes :
       {0u, 1u, 7u, 16u, 511u, 512u, 513u, 4096u, 4097u, 8192u, 12345u, 65535u, 65536u})
    for (const auto& [to, from] :
         {std::pair<std::size_t, std::size_t>{0, 0}, {1, 0}, {3, 5}, {16, 48}, {8, 4}}) {
      fill(++seed);
      ASSERT_EQ(run(on_gpu->address() + 2, source_at(from), bytes).to_string(), "ok");
      ASSERT_EQ(run(target_at(to), on_gpu->address() + 2, bytes).to_string(), "ok");
      expect(to, from, bytes, seed);
    }
}

TEST_F(ResidentOnDevice, TakesOrdersWhereItHasJustLeft) {
  for (unsigned round = 0; round < 40; ++round) {
    fill(round);
    ASSERT_EQ(run(target_at(round), source_at(2 * round), 999).to_string(), "ok");
    expect(round, 2 * round, 999, round);
    // Some come while it is there, some when it is about to go, some long after.
    std::this_thread::sleep_for(microseconds(30) * (round % 12));
  }
}

TEST_F(ResidentOnDevice, ManyInFlightEndAlsoWhereItLeavesMeanwhile) {
  const auto begin = base::Clock::steady().now();
  for (unsigned round = 0; base::Clock::steady().now() - begin < 20 * ResidentCopier::kStay;
       ++round) {
    fill(round);
    std::vector<Ticket> tickets;
    for (std::size_t i = 0; i < ResidentCopier::kOrders; ++i)
      tickets.push_back(take(start(target_at(i * 1000), source_at(i * 1000), 1000)));
    EXPECT_EQ(start(target_at(0), source_at(0), 1).status().code(), Code::no_resource);
    EXPECT_NE(copier->expected({}), base::Time::max());
    for (std::size_t i = tickets.size(); i-- > 0;) ASSERT_TRUE(end_of(tickets[i]).ok());
    expect(0, 0, tickets.size() * 1000, round);
  }
  EXPECT_EQ(copier->expected({}), base::Time::max());
  EXPECT_EQ(copier->poll(1)->code(), Code::internal);
}

TEST_F(ResidentOnDevice, GoesAwayByItselfAndWithItsOwner) {
  ASSERT_TRUE(run(target_at(0), source_at(0), 8).ok());
  const auto begin = base::Clock::steady().now();
  ASSERT_EQ(device->driver().cuCtxSynchronize(), cuda::CUDA_SUCCESS);
  EXPECT_LT(base::Clock::steady().now() - begin, seconds(10));
  ASSERT_TRUE(run(target_at(0), source_at(0), 8).ok());
  copier.reset();
  EXPECT_LT(base::Clock::steady().now() - begin, seconds(20));
}

TEST_F(ResidentOnDevice, RefusesWhatItCannotCopy) {
  const auto event = take(cuda::Event::create(*scope));
  const Piece two[] = {{target_at(0), source_at(0), 1}, {target_at(1), source_at(1), 1}};
  const Piece large{target_at(0), source_at(0), ResidentCopier::kMaxBytes + 1};
  for (const Order& order :
       {Order{.method = Method::resident}, Order{.method = Method::resident, .pieces = two},
        Order{.method = Method::resident, .pieces = {&large, 1}},
        Order{.method = Method::copy_engine, .pieces = {two, 1}},
        Order{.method = Method::resident, .pieces = {two, 1}, .after = &event}})
    EXPECT_EQ(copier->start(order).status().code(), Code::invalid_argument);
}

}  // namespace resident_copier_test
}  // namespace linkspan::copy
