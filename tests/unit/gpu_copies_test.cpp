// Tests GpuCopier over the driver of this machine, or the simulated one.
#include <cstring>
#include <deque>
#include <thread>

#include "tests/unit/gpu_copier_fixture.hpp"

namespace linkspan::copy {
namespace gpu_copies_test {

Bytes pattern(std::size_t bytes, std::size_t seed) {
  Bytes data(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    data[i] = static_cast<unsigned char>(i * 131 + (i >> 8) * 7 + seed);
  return data;
}

class GpuCopies : public ::testing::TestWithParam<Method> {
 protected:
  static constexpr std::size_t kBytes = (std::size_t{6} << 20) + 123;

  void SetUp() override {
    auto created = Topology::create();
    if (!created.ok()) {
      ASSERT_EQ(created.status().code(), Code::unsupported);
      GTEST_SKIP() << "needs a GPU or the simulated driver";
    }
    topology = *std::move(created);
    auto activated = topology->activate(topology->devices()[0].uuid);
    ASSERT_TRUE(activated.ok()) << activated.status().to_string();
    device = *activated;
    auto made = GpuCopier::create(*device, {});
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    copier = *std::move(made);
    if (GetParam() == Method::sm_kernel && !copier->has_kernel())
      GTEST_SKIP() << "needs a build with kernels";
    auto scope = device->enter();
    ASSERT_TRUE(scope.ok());
    for (auto& buffer : host) {
      auto pinned = PinnedBuffer::create(*scope, kBytes);
      ASSERT_TRUE(pinned.ok()) << pinned.status().to_string();
      buffer.push_back(*std::move(pinned));
    }
    for (int i = 0; i < 2; ++i) {
      auto buffer = DeviceBuffer::create(*scope, kBytes);
      ASSERT_TRUE(buffer.ok()) << buffer.status().to_string();
      gpu.push_back(*std::move(buffer));
    }
  }

  Status end_of(Ticket ticket) {
    const auto deadline = base::Deadline::after(base::Clock::steady(), seconds(30));
    while (!deadline.passed()) {
      if (auto end = copier->poll(ticket)) return *end;
      std::this_thread::yield();
    }
    return Status(Code::timed_out, Scope::request, "the order never ended");
  }
  Status run(std::span<const Piece> pieces, Method method = GetParam()) {
    auto ticket = copier->start({.method = method, .pieces = pieces});
    return ticket.ok() ? end_of(*ticket) : ticket.status();
  }
  /// Copies whole buffers by the copy engine. `at` is an address of the GPU.
  void put(std::uint64_t at, const Bytes& data) {
    std::memcpy(host[0][0].data(), data.data(), data.size());
    const Piece piece{at, address(host[0][0].data()), data.size()};
    const Status end = run({&piece, 1}, Method::copy_engine);
    ASSERT_TRUE(end.ok()) << end.to_string();
  }
  Bytes get(std::uint64_t at) {
    const Piece piece{address(host[0][0].data()), at, kBytes};
    EXPECT_TRUE(run({&piece, 1}, Method::copy_engine).ok());
    Bytes data(kBytes);
    std::memcpy(data.data(), host[0][0].data(), kBytes);
    return data;
  }
  /// Returns pieces of odd sizes with every misalignment of either side; offsets, none adjacent to
  /// the next.
  static std::vector<Piece> scattered() {
    std::vector<Piece> pieces;
    std::uint64_t to = 3, from = 1, k = 0;
    const std::uint64_t sizes[] = {1, 3, 16, 255, 4096, 4097, 65535, 65537, 0, 17, 400003};
    for (;; ++k) {
      const std::uint64_t n = sizes[k % std::size(sizes)];
      if (pieces.size() == 500 || to + n + 64 > kBytes || from + n + 64 > kBytes) return pieces;
      pieces.push_back({to, from, n});
      to += n + k % 17 + 1;
      from += n + k * 7 % 17 + 1;
    }
  }
  static std::vector<Piece> placed(std::vector<Piece> pieces, std::uint64_t to,
                                   std::uint64_t from) {
    for (Piece& piece : pieces) piece = {piece.to + to, piece.from + from, piece.bytes};
    return pieces;
  }

  std::unique_ptr<Topology> topology;
  const Device* device = nullptr;
  std::unique_ptr<GpuCopier> copier;
  std::vector<PinnedBuffer> host[2];  // [0]: to verify with; [1]: to copy from and to
  std::vector<DeviceBuffer> gpu;
};

TEST_P(GpuCopies, CopiesExactlyThePieces) {
  const Bytes poison(kBytes, kPoison);
  const auto offsets = scattered();
  const std::uint64_t pinned = address(host[1][0].data());
  const struct {
    std::uint64_t to, from;
  } directions[] = {
      {gpu[0].address(), gpu[1].address()}, {gpu[0].address(), pinned}, {pinned, gpu[1].address()}};
  std::size_t seed = 0;
  for (const auto& way : directions) {
    const Bytes data = pattern(kBytes, ++seed);
    put(way.from, data);
    put(way.to, poison);
    const Status end = run(placed(offsets, way.to, way.from));
    ASSERT_TRUE(end.ok()) << end.to_string();
    Bytes want = poison;
    for (const Piece& p : offsets) std::memcpy(want.data() + p.to, data.data() + p.from, p.bytes);
    EXPECT_TRUE(get(way.to) == want) << "direction " << seed;
  }
}

TEST_P(GpuCopies, CopiesAllOfTheLargestOrder) {
  const Bytes data = pattern(kBytes, 9);
  put(gpu[1].address(), data);
  put(gpu[0].address(), Bytes(kBytes, kPoison));
  const std::uint64_t count = GpuCopier::max_pieces(GetParam());
  std::vector<Piece> pieces;
  for (std::uint64_t i = 0; i < count; ++i)  // in reverse order, 255 bytes each
    pieces.push_back({gpu[0].address() + 257 * i, gpu[1].address() + 256 * (count - i), 255});
  const Status end = run(pieces);
  ASSERT_TRUE(end.ok()) << end.to_string();
  Bytes want(kBytes, kPoison);
  for (std::uint64_t i = 0; i < count; ++i)
    std::memcpy(want.data() + 257 * i, data.data() + 256 * (count - i), 255);
  EXPECT_TRUE(get(gpu[0].address()) == want);
  pieces.push_back({gpu[0].address(), gpu[1].address(), 1});
  EXPECT_EQ(run(pieces).code(), Code::invalid_argument);
}

TEST_P(GpuCopies, OrdersOfALaneRunInOrder) {
  const Bytes data = pattern(kBytes, 4);
  put(gpu[0].address(), data);
  put(gpu[1].address(), Bytes(kBytes, kPoison));
  const Piece there{gpu[1].address(), gpu[0].address(), kBytes};
  const Piece back{address(host[1][0].data()), gpu[1].address(), kBytes};
  auto first = copier->start({.method = GetParam(), .pieces = {&there, 1}, .queue = 5});
  auto second = copier->start({.method = GetParam(), .pieces = {&back, 1}, .queue = 1});
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_TRUE(end_of(*second).ok());
  EXPECT_EQ(std::memcmp(host[1][0].data(), data.data(), kBytes), 0);
  EXPECT_TRUE(end_of(*first).ok());
}

TEST_P(GpuCopies, ManyOrdersInFlight) {
  const Bytes data = pattern(kBytes, 8);
  put(gpu[0].address(), data);
  put(gpu[1].address(), Bytes(kBytes, kPoison));
  constexpr std::size_t kPart = 4099;
  const std::size_t parts = kBytes / kPart;
  std::deque<Ticket> running;
  for (std::size_t i = 0; i < parts;) {
    const Piece part{gpu[1].address() + i * kPart, gpu[0].address() + i * kPart, kPart};
    auto ticket = copier->start(
        {.method = GetParam(), .pieces = {&part, 1}, .queue = static_cast<unsigned>(i % 7)});
    if (ticket.ok()) {
      running.push_back(*ticket);
      ++i;
      continue;
    }
    ASSERT_EQ(ticket.status().code(), Code::no_resource);
    ASSERT_FALSE(running.empty());
    ASSERT_TRUE(end_of(running.front()).ok());
    running.pop_front();
  }
  for (Ticket ticket : running) ASSERT_TRUE(end_of(ticket).ok());
  Bytes want(kBytes, kPoison);
  std::memcpy(want.data(), data.data(), parts * kPart);
  EXPECT_TRUE(get(gpu[1].address()) == want);
}

TEST_P(GpuCopies, AnAbortedOrderIsQuietAndLeavesTheNextAlone) {
  const Bytes data = pattern(kBytes, 2);
  put(gpu[0].address(), data);
  const Piece all{gpu[1].address(), gpu[0].address(), kBytes};
  for (int i = 0; i < 12; ++i) {
    put(gpu[1].address(), Bytes(kBytes, kPoison));
    auto ticket = copier->start({.method = GetParam(), .pieces = {&all, 1}});
    ASSERT_TRUE(ticket.ok());
    copier->abort(*ticket);
    const Status end = end_of(*ticket);
    EXPECT_TRUE(end.ok() || (end.code() == Code::canceled && GetParam() == Method::sm_kernel))
        << end.to_string();
    put(gpu[1].address(), Bytes(kBytes, kPoison));
    EXPECT_TRUE(get(gpu[1].address()) == Bytes(kBytes, kPoison));  // no late bytes
    ASSERT_TRUE(run({&all, 1}).ok());
    ASSERT_TRUE(get(gpu[1].address()) == data);
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, GpuCopies,
                         ::testing::Values(Method::copy_engine, Method::sm_kernel),
                         [](const auto& method) { return std::string(name_of(method.param)); });

}  // namespace gpu_copies_test
}  // namespace linkspan::copy
