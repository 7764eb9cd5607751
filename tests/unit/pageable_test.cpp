// Tests CpuCopier's copies between GPUs and pageable memory, on the GPU of this machine or over the
// simulated driver.
#include "copy/pageable.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <stdexcept>
#include <thread>

#include "copy/cpu_copier.hpp"
#include "tests/support/fake_cuda/controls.hpp"
#include "tests/support/take.hpp"
#include "tests/unit/cuda_fixture.hpp"

namespace linkspan::copy {
namespace pageable_test {

using test::take, test::must;
using Bytes = std::vector<std::byte>;
using Pieces = std::vector<Piece>;

constexpr std::byte kPoison{0xEE};
constexpr std::size_t kBytes = (std::size_t{5} << 20) + 123;
constexpr unsigned kThreads = 3, kCtas = 4;
/// Twelve slots of 52 KiB: kBytes are many times that.
constexpr std::size_t kStaging = kThreads * Staging::kBuffers * (std::size_t{64} << 10);

std::uint64_t address(const void* p) { return reinterpret_cast<std::uint64_t>(p); }

Bytes data_of(unsigned seed) {
  Bytes data(kBytes);
  for (std::size_t i = 0; i < kBytes; ++i) data[i] = cuda::pattern(i, seed);
  return data;
}

Status end_of(Copier& copier, Ticket ticket, Duration wait = std::chrono::seconds(30)) {
  const auto deadline = base::Deadline::after(base::Clock::steady(), wait);
  while (!deadline.passed()) {
    if (auto end = copier.poll(ticket)) return *end;
    std::this_thread::yield();
  }
  return {Code::timed_out, Scope::request, "the order never ended"};
}

class PageableOnDevice : public cuda::OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    copier = take(CpuCopier::create(kThreads, kStaging));
    stream.emplace(take(cuda::Stream::create(*scope)));
    pinned.emplace(take(cuda::PinnedBuffer::create(*scope, kBytes)));
    gpu.emplace(take(cuda::DeviceBuffer::create(*scope, kBytes)));
  }
  void TearDown() override { copier.reset(); }

  void put(std::uint64_t at, const Bytes& data) {
    std::memcpy(pinned->data(), data.data(), kBytes);
    must(stream->copy(*scope, at, pinned->device_address(), kBytes));
    must(stream->synchronize(*scope));
  }
  Bytes get(std::uint64_t at) {
    must(stream->copy(*scope, pinned->device_address(), at, kBytes));
    must(stream->synchronize(*scope));
    return {pinned->data(), pinned->data() + kBytes};
  }
  static Order of(const cuda::Device& on, const Pieces& pieces, bool to_gpu) {
    return {.method = Method::pageable,
            .pieces = pieces,
            .device = &on,
            .ctas = kCtas,
            .to_gpu = to_gpu};
  }
  Order order(const Pieces& pieces, bool to_gpu) const { return of(*device, pieces, to_gpu); }
  const cuda::Device* second_device() const {
    return take(topology->activate(topology->devices()[1].uuid));
  }
  Status run(const Order& order) {
    auto ticket = copier->start(order);
    return ticket.ok() ? end_of(*copier, *ticket) : ticket.status();
  }
  /// Copies both ways, and checks that only those bytes changed on either side.
  void copies_exactly(const Pieces& offsets) {
    const Bytes data = data_of(1), poison(kBytes, kPoison);
    Bytes want = poison, host = data;
    for (const Piece& p : offsets)
      std::copy_n(data.begin() + static_cast<std::ptrdiff_t>(p.from), p.bytes,
                  want.begin() + static_cast<std::ptrdiff_t>(p.to));
    put(gpu->address(), poison);
    Status end = run(order(placed(offsets, gpu->address(), address(host.data())), true));
    ASSERT_TRUE(end.ok()) << end.to_string();
    EXPECT_TRUE(get(gpu->address()) == want) << "to the GPU";
    put(gpu->address(), data);
    host = poison;
    end = run(order(placed(offsets, address(host.data()), gpu->address()), false));
    ASSERT_TRUE(end.ok()) << end.to_string();
    EXPECT_TRUE(host == want) << "from the GPU";
  }
  static Pieces placed(Pieces pieces, std::uint64_t to, std::uint64_t from) {
    for (Piece& piece : pieces) piece = {piece.to + to, piece.from + from, piece.bytes};
    return pieces;
  }
  /// Returns `count` pieces with sizes and gaps used in turn, in random order.
  static Pieces scattered(std::size_t count, const std::vector<std::uint64_t>& sizes,
                          std::uint64_t to_gap, std::uint64_t from_gap) {
    Pieces pieces;
    std::uint64_t to = 3, from = 1;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t bytes = sizes[i % sizes.size()];
      pieces.push_back({to, from, bytes});
      to += bytes + (to_gap != 0 ? 1 + i % to_gap : 0);
      from += bytes + (from_gap != 0 ? 1 + i * 7 % from_gap : 0);
    }
    if (std::max(to, from) > kBytes) throw std::length_error("scattered too far");
    if (to_gap != 0 && from_gap != 0)
      std::shuffle(pieces.begin(), pieces.end(), std::mt19937(static_cast<unsigned>(count)));
    return pieces;
  }
  static Pieces whole() { return {{0, 0, kBytes}}; }
  void without_a_kernel() {
    copier = take(CpuCopier::create(kThreads, kStaging));
    gpu.reset();
    pinned.reset();
    stream.reset();
    scope.reset();
    topology = take(cuda::Topology::create());
    device = take(topology->open(topology->devices()[0].uuid));
    ASSERT_EQ(device->copy_blocks(), nullptr);
    scope = entered(*device);
    stream.emplace(take(cuda::Stream::create(*scope)));
    pinned.emplace(take(cuda::PinnedBuffer::create(*scope, kBytes)));
    gpu.emplace(take(cuda::DeviceBuffer::create(*scope, kBytes)));
  }

  const test::FakeCuda fake = test::FakeCuda::find();
  std::unique_ptr<CpuCopier> copier;
  std::optional<cuda::Stream> stream;
  std::optional<cuda::PinnedBuffer> pinned;  // to look with
  std::optional<cuda::DeviceBuffer> gpu;
};

std::vector<std::uint64_t> up_to(std::uint64_t most) {
  std::vector<std::uint64_t> sizes(most);
  std::iota(sizes.begin(), sizes.end(), 1);
  return sizes;
}

TEST_F(PageableOnDevice, CopiesMoreThanAllSlots) { copies_exactly({{0, 0, kBytes}}); }

TEST_F(PageableOnDevice, CopiesAtAnyAlignment) {
  copies_exactly({{5, 11, 1}});
  copies_exactly({{5, 11, kBytes - 77}});
  copies_exactly(
      scattered(350, {1, 3, 16, 255, 4095, 0, 4097, 17, 65537, 8192, 100003, 0, 2}, 17, 17));
}

TEST_F(PageableOnDevice, CopiesManySmallPieces) {
  copies_exactly(scattered(20'000, up_to(257), 31, 29));
  copies_exactly(scattered(100'000, {1, 2, 3}, 1, 1));
}

TEST_F(PageableOnDevice, CopiesWithoutTheKernel) {
  without_a_kernel();
  copies_exactly(scattered(3000, up_to(257), 31, 29));
  copies_exactly(scattered(300, {1, 4095, 65537, 8192, 3}, 5, 5));
}

/// Pieces that are contiguous on the GPU share buffers, and each buffer is one copy.
TEST_F(PageableOnDevice, PiecesThatAreContiguousOnTheGpuGoTogether) {
  const Pieces gathered = scattered(16'000, up_to(257), 0, 29);
  const Pieces spread = scattered(16'000, up_to(257), 29, 0);
  copies_exactly(gathered);
  copies_exactly(spread);
  if (!fake) GTEST_SKIP() << "needs the simulated driver";
  Bytes host(kBytes);
  fake.reset();
  must(run(order(placed(gathered, gpu->address(), address(host.data())), true)));
  must(run(order(placed(spread, address(host.data()), gpu->address()), false)));
  EXPECT_GE(fake.call_count("cuMemcpyAsync"), 60u);  // 2 MiB each way
  EXPECT_LE(fake.call_count("cuMemcpyAsync"), 100u);
  EXPECT_EQ(fake.call_count("cuLaunchKernel"), 0u);
}

TEST_F(PageableOnDevice, ScatteredOnTheGpuTheKernelTakesThem) {
  if (!fake) GTEST_SKIP() << "needs the simulated driver";
  if (device->copy_blocks() == nullptr) GTEST_SKIP() << "needs a build with kernels";
  Bytes host(kBytes);
  fake.reset();
  must(run(
      order(placed(scattered(4800, {64}, 16, 16), gpu->address(), address(host.data())), true)));
  EXPECT_EQ(fake.call_count("cuLaunchKernel"), (4800u + Staging::kRuns - 1) / Staging::kRuns);
  EXPECT_EQ(fake.call_count("cuMemcpyAsync"), 0u);
}

/// Making a stream may wait for work in flight, which may wait for this copy.
TEST_F(PageableOnDevice, MakesNoStreamOfAGpuThatItServes) {
  if (!fake) GTEST_SKIP() << "needs the simulated driver";
  must(copier->serve(*device));
  Bytes host(kBytes);
  fake.reset();
  const Pieces up = placed(whole(), gpu->address(), address(host.data()));
  for (int i = 0; i < 4; ++i) must(run(order(up, true)));
  EXPECT_EQ(fake.call_count("cuStreamCreateWithPriority"), 0u);
  EXPECT_EQ(fake.call_count("cuMemAlloc"), 0u);
}

TEST_F(PageableOnDevice, PinsWithinItsBoundsAndOnce) {
  if (!fake) GTEST_SKIP() << "needs the simulated driver";
  Bytes host(kBytes);
  fake.reset();
  const Pieces up = placed(whole(), gpu->address(), address(host.data()));
  for (int i = 0; i < 4; ++i) must(run(order(up, true)));
  const auto pinned_slots = fake.call_count("cuMemHostAlloc");
  EXPECT_GE(pinned_slots, Staging::kBuffers);
  EXPECT_LE(pinned_slots, kThreads * Staging::kBuffers);
  EXPECT_EQ(Staging::buffer_bytes(kStaging / kThreads) + Staging::kOverheadBytes, 64u << 10);
  EXPECT_EQ(Staging::buffer_bytes(0), 4096u);
  EXPECT_EQ(Staging::buffer_bytes(~std::size_t{0}), Staging::kMaxBytes);
  EXPECT_LE(fake.call_count("cuStreamCreateWithPriority"), kThreads);
  EXPECT_EQ(fake.call_count("cuMemHostRegister"), 0u);
}

TEST_F(PageableOnDevice, SeveralOrdersAtOnceBothWays) {
  constexpr std::size_t kOrders = 24, kPart = kBytes / kOrders;
  const Bytes data = data_of(3);
  Bytes host = data, back(kBytes, kPoison), copied(kBytes, kPoison);
  auto other = take(cuda::DeviceBuffer::create(*scope, kBytes));
  put(gpu->address(), data);
  put(other.address(), Bytes(kBytes, kPoison));
  std::vector<Ticket> tickets;
  const auto start = [&](const Order& one) { tickets.push_back(take(copier->start(one))); };
  for (std::size_t i = 0; i < kOrders; ++i) {
    const Pieces part{{i * kPart, i * kPart, kPart}};
    start(order(placed(part, other.address(), address(host.data())), true));
    start(order(placed(part, address(back.data()), gpu->address()), false));
    start({.method = Method::cpu_threads,
           .pieces = placed(part, address(copied.data()), address(data.data()))});
  }
  for (const Ticket ticket : tickets) {
    const Status end = end_of(*copier, ticket);
    EXPECT_TRUE(end.ok()) << end.to_string();
  }
  Bytes want = data;
  std::fill(want.begin() + kOrders * kPart, want.end(), kPoison);
  EXPECT_TRUE(get(other.address()) == want);
  EXPECT_TRUE(back == want);
  EXPECT_TRUE(copied == want);
}

TEST_F(PageableOnDevice, AnAbortedOrderIsQuiet) {
  copier = take(CpuCopier::create(1, kStaging));  // so that pieces may share their memory
  const Bytes data = data_of(4), poison(kBytes, kPoison);
  Bytes host = data;
  const Pieces much(200, {0, 0, kBytes});  // 1 GB: no more of it than needed
  const auto up = placed(much, gpu->address(), address(host.data()));
  for (int i = 0; i < 8; ++i) {
    auto ticket = take(copier->start(order(up, true)));
    std::this_thread::sleep_for(std::chrono::milliseconds(i));
    copier->abort(ticket);
    EXPECT_EQ(end_of(*copier, ticket).code(), Code::canceled);
    put(gpu->address(), poison);
    host = poison;  // what is read late is wrong, too
    EXPECT_TRUE(get(gpu->address()) == poison) << "late bytes on the GPU";
    put(gpu->address(), data);
    ticket = take(copier->start(order(placed(much, address(host.data()), gpu->address()), false)));
    std::this_thread::sleep_for(std::chrono::milliseconds(i));
    copier->abort(ticket);
    EXPECT_EQ(end_of(*copier, ticket).code(), Code::canceled);
    host = poison;
    must(run(order(placed({{0, 0, 1}}, address(pinned->data()), gpu->address()), false)));
    EXPECT_TRUE(host == poison) << "late bytes here";
    host = data;
  }
}

/// A blocked GPU has all buffers. Nothing is lost, and copies that need no buffer go on.
TEST_F(PageableOnDevice, WaitsForSlotsAndLetsOthersPass) {
  if (!fake) GTEST_SKIP() << "needs the simulated driver";
  constexpr std::size_t kHalf = kBytes / 2;
  const auto another = second_device();
  const Bytes data = data_of(5);
  Bytes host = data, back(kBytes, kPoison), copied(kBytes, kPoison);
  put(gpu->address(), Bytes(kBytes, kPoison));
  must(run(order(placed({{0, 0, 1}}, gpu->address(), address(host.data())), true)));
  std::vector<Ticket> tickets;
  {
    const test::FakeCudaHold hold(fake, device->info().ordinal);
    for (const Pieces& part :
         {Pieces{{0, 0, kHalf}}, Pieces{{kHalf, kHalf, kBytes - kHalf}}, whole()})
      tickets.push_back(
          take(copier->start(order(placed(part, gpu->address(), address(host.data())), true))));
    for (int i = 0; i < 20; ++i) {
      const Status end =
          run({.method = Method::cpu_threads,
               .pieces = placed(whole(), address(copied.data()), address(data.data()))});
      ASSERT_TRUE(end.ok()) << end.to_string();
    }
    EXPECT_TRUE(copied == data);
    const auto inside = take(another->enter());
    const auto memory = take(cuda::DeviceBuffer::create(inside, kBytes));
    must(run(of(*another, placed(whole(), memory.address(), address(host.data())), true)));
    must(run(of(*another, placed(whole(), address(back.data()), memory.address()), false)));
    EXPECT_TRUE(back == data);
    back.assign(kBytes, kPoison);
    copier->abort(tickets[2]);  // no chunk of it has begun
    EXPECT_EQ(end_of(*copier, tickets[2], std::chrono::seconds(1)).code(), Code::canceled);
    for (const int i : {0, 1}) EXPECT_FALSE(copier->poll(tickets[static_cast<std::size_t>(i)]));
  }
  for (const int i : {0, 1})
    EXPECT_TRUE(end_of(*copier, tickets[static_cast<std::size_t>(i)]).ok());
  EXPECT_TRUE(get(gpu->address()) == data);
  must(run(order(placed(whole(), address(back.data()), gpu->address()), false)));
  EXPECT_TRUE(back == data);
}

TEST_F(PageableOnDevice, ALostContextEndsItsOrdersAndNobodyElses) {
  if (!fake) GTEST_SKIP() << "needs the simulated driver";
  const auto second = second_device();
  const Bytes data = data_of(6);
  Bytes host = data, back(kBytes, kPoison), untouched(kBytes, kPoison);
  const auto inside = take(second->enter());
  const auto memory = take(cuda::DeviceBuffer::create(inside, kBytes));
  const auto up = placed(whole(), gpu->address(), address(host.data()));
  const auto down = placed(whole(), address(untouched.data()), gpu->address());
  must(run(order(up, true)));
  std::vector<Ticket> tickets;
  {
    const test::FakeCudaHold hold(fake, device->info().ordinal);
    for (int i = 0; i < 3; ++i) {
      tickets.push_back(take(copier->start(order(up, true))));
      tickets.push_back(take(copier->start(order(down, false))));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    fake.lose(device->info().ordinal);
    for (const Ticket ticket : tickets) {
      const Status end = end_of(*copier, ticket, std::chrono::seconds(5));
      EXPECT_EQ(end.code(), Code::cuda) << end.to_string();
      EXPECT_NE(end.what().find("700"), std::string::npos) << end.what();
    }
  }
  EXPECT_EQ(run(order(up, true)).code(), Code::cuda);
  // In the slots that the lost GPU may still have in its hands nothing of others is put.
  const auto pinned_before = fake.call_count("cuMemHostAlloc");
  must(run(of(*second, placed(whole(), memory.address(), address(host.data())), true)));
  must(run(of(*second, placed(whole(), address(back.data()), memory.address()), false)));
  EXPECT_GT(fake.call_count("cuMemHostAlloc"), pinned_before);
  EXPECT_TRUE(back == data);
  EXPECT_TRUE(untouched == Bytes(kBytes, kPoison));
  copier.reset();
  fake.reset();
}

/// A refusal of the driver is reported, after what was queued before it has ended.
TEST_F(PageableOnDevice, ARefusedCopyIsAnErrorAndTheNextIsNone) {
  if (!fake) GTEST_SKIP() << "needs the simulated driver";
  without_a_kernel();
  const Bytes data = data_of(7);
  Bytes host = data;
  const std::uint64_t beyond = gpu->address() + kBytes - 100;
  for (const bool first : {true, false}) {
    Pieces pieces{{gpu->address(), address(host.data()), 4096},
                  {beyond, address(host.data()), 4096}};
    if (first) std::swap(pieces[0], pieces[1]);
    EXPECT_EQ(run(order(pieces, true)).code(), Code::cuda);
    for (Piece& piece : pieces) std::swap(piece.to, piece.from);
    EXPECT_EQ(run(order(pieces, false)).code(), Code::cuda);
  }
  {
    const test::FakeCudaHold hold(fake, device->info().ordinal);
    const auto half = take(copier->start(
        order({{gpu->address(), address(host.data()), 4096}, {beyond, address(host.data()), 4096}},
              true)));
    EXPECT_EQ(end_of(*copier, half, std::chrono::milliseconds(50)).code(), Code::timed_out);
    copier->abort(half);
    EXPECT_FALSE(copier->poll(half)) << "the first copy is under way";
  }
  copies_exactly(whole());
}

TEST_F(PageableOnDevice, IsDestroyedWithOrdersQueued) {
  Bytes host(kBytes, kPoison);
  constexpr std::size_t kOrders = 20, kPart = kBytes / kOrders;
  for (std::size_t i = 0; i < kOrders; ++i) {
    const Pieces part{{i * kPart, i * kPart, kPart}};
    const Pieces up = placed(part, gpu->address(), address(host.data()));
    ASSERT_TRUE(copier->start(order(up, true)).ok());
  }
  copier.reset();
}

}  // namespace pageable_test
}  // namespace linkspan::copy
