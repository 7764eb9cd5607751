// Tests the methods of unpacking, over the driver of this machine or the simulated one. Over a
// driver whose stream runs when the test lets it, tests them when the stream is full or fails.
#include "transport/nccl_net/tcpx/unpack.hpp"

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

#include "tests/support/fake_cuda/controls.hpp"
#include "tests/support/pattern.hpp"
#include "tests/support/take.hpp"
#include "tests/unit/gpu_copier_fixture.hpp"

namespace linkspan::transport::nccl_net::tcpx {
namespace tcpx_unpack_test {

using test::take;

constexpr std::size_t kPool = std::size_t{24} << 20, kTarget = kPool, kGuard = 4096;
constexpr std::uint64_t kPoolSeed = 11, kTargetSeed = 12;

/// Returns a receive of `count` fragments with sizes of 1 to `most`, anywhere in the pool from
/// `pool` on. Advances `pool` by what it uses.
std::vector<LoadMeta> fragments(std::mt19937& random, std::size_t count, std::uint32_t most,
                                std::uint64_t& pool) {
  std::vector<LoadMeta> all;
  std::uint64_t to = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto bytes = static_cast<std::uint32_t>(1 + random() % most);
    pool += random() % 3 == 0 ? 0 : random() % 70;  // some go on where the last one ended
    if (pool + bytes > kPool) pool = random() % 97;
    all.push_back({static_cast<std::uint32_t>(pool), bytes, to});
    pool += bytes;
    to += bytes;
  }
  std::shuffle(all.begin(), all.end(), random);
  return all;
}

DescriptorBlock block_of(const std::vector<LoadMeta>& entries, std::uint64_t pool = kPool) {
  std::uint64_t bytes = 0;
  for (const LoadMeta& entry : entries) bytes += entry.len;
  return take(DescriptorBlock::of(entries, {pool, bytes}));
}

class UnpackOnDevice : public ::testing::TestWithParam<Unpack> {
 protected:
  void SetUp() override {
    auto created = cuda::Topology::create();
    if (created.status().code() == Code::unsupported)
      GTEST_SKIP() << "needs a GPU or the simulated driver: " << created.status().to_string();
    topology = take(std::move(created));
    device = take(topology->activate(topology->devices()[0].uuid));
    if (GetParam() == Unpack::kernel && device->kernels().code() == Code::unsupported)
      GTEST_SKIP() << "needs a GPU or the simulated driver, and a build with kernels";
    const auto scope = take(device->enter());
    stream.emplace(take(cuda::Stream::create(scope)));
    pool.emplace(take(cuda::DeviceBuffer::create(scope, kPool)));
    target.emplace(take(cuda::DeviceBuffer::create(scope, kTarget)));
    host.emplace(take(cuda::PinnedBuffer::create(scope, kPool)));
    fill(pool->address(), kPoolSeed);
    fill(target->address(), kTargetSeed);
    unpacker = take(Unpacker::create(*device, GetParam(), {}));
  }

  void fill(cuda::CUdeviceptr to, std::uint64_t seed) {
    test::put_pattern({host->data(), kPool}, seed, 0);
    copy(to, host->device_address());
  }
  void copy(cuda::CUdeviceptr to, cuda::CUdeviceptr from) {
    const auto scope = take(device->enter());
    test::must(stream->copy(scope, to, from, kPool));
    test::must(stream->synchronize(scope));
  }

  /// At an offset of the target.
  struct Placed {
    DescriptorBlock block;
    std::uint64_t at = 0;
  };
  std::vector<UnpackRequest> requests_of(const std::vector<Placed>& placed) const {
    std::vector<UnpackRequest> requests;
    for (const Placed& one : placed)
      requests.push_back({.block = &one.block,
                          .bounce = pool->address(),
                          .destination = target->address() + one.at});
    return requests;
  }
  Status end_of(Unpacker::UnpackId id) {
    const auto deadline = base::Deadline::after(base::Clock::steady(), std::chrono::seconds(60));
    while (!deadline.passed()) {
      if (auto end = unpacker->poll(id)) return *end;
      std::this_thread::yield();
    }
    return {Code::timed_out, Scope::request, "the batch never ended"};
  }
  Status run(const std::vector<Placed>& placed) {
    const auto id = unpacker->begin(requests_of(placed));
    return id.ok() ? end_of(*id) : id.status();
  }
  void expect_unpacked(const std::vector<Placed>& placed) {
    std::vector<test::Expected> expected;
    for (const Placed& one : placed)
      for (const LoadMeta& entry : one.block.entries())
        expected.push_back({one.at + entry.dst_off, kPoolSeed, entry.src_off, entry.len});
    copy(host->device_address(), target->address());
    EXPECT_EQ(test::first_difference({host->data(), kTarget}, kTargetSeed, 0, expected), "");
  }

  std::unique_ptr<cuda::Topology> topology;
  const cuda::Device* device = nullptr;
  std::optional<cuda::Stream> stream;
  std::optional<cuda::DeviceBuffer> pool, target;
  std::optional<cuda::PinnedBuffer> host;  // to verify with
  std::unique_ptr<Unpacker> unpacker;
};

TEST_P(UnpackOnDevice, EveryAlignmentAndSize) {
  std::vector<Placed> placed;
  std::uint64_t at = 1, from = 0;
  for (const std::uint32_t bytes : {1u, 15u, 16u, 17u, 31u, 33u, 527u, 1041u, 4001u})
    for (std::uint32_t odd = 0; odd < 16; ++odd) {
      // One fragment at each end, so that it does not merge with its neighbour.
      std::vector<LoadMeta> entries;
      for (std::uint32_t k = 0; k < 17; ++k) {
        entries.push_back(
            {static_cast<std::uint32_t>(from + odd), bytes, std::uint64_t{k} * bytes});
        from += (bytes + 63) / 16 * 16 + k;
      }
      placed.push_back({block_of(entries), at});
      at += 17 * bytes + 3;
      if (placed.size() < Unpacker::kRequests) continue;
      ASSERT_TRUE(run(placed).ok());
      expect_unpacked(placed);
      fill(target->address(), kTargetSeed);
      placed.clear();
    }
  ASSERT_TRUE(run(placed).ok());
  expect_unpacked(placed);
}

TEST_P(UnpackOnDevice, ManyReceivesOfManyFragmentsAtOnce) {
  std::mt19937 random(7);
  std::vector<Placed> placed;
  std::uint64_t at = kGuard, from = 0;
  for (int i = 0; i < 9; ++i) {
    placed.push_back({block_of(fragments(random, kMaxFragments, 1500, from)), at});
    at += placed.back().block.bytes() + random() % 33;
  }
  ASSERT_LT(at, Unpacker::kHostBytes);
  const test::FakeCuda fake = test::FakeCuda::find();
  const auto launches = fake ? fake.call_count("cuLaunchKernel") : 0;
  const Status end = run(placed);
  ASSERT_TRUE(end.ok()) << end.to_string();
  expect_unpacked(placed);
  if (fake && GetParam() == Unpack::kernel) {
    EXPECT_EQ(fake.call_count("cuLaunchKernel") - launches, 1u);
  }
}

TEST_P(UnpackOnDevice, LargeFragmentsAndNone) {
  const std::vector<Placed> placed = {
      {block_of({{13, 3 << 20, 0}, {5 << 20, (4 << 20) + 5, 3 << 20}}), 1 << 20},
      {block_of({}), 0},
      {block_of({{(9 << 20) + 32, 5 << 20, 0}}), 9 << 20}};
  const Status end = run(placed);
  ASSERT_TRUE(end.ok()) << end.to_string();
  expect_unpacked(placed);
  EXPECT_TRUE(run({}).ok());
  EXPECT_TRUE(run({{block_of({}), 0}}).ok());
}

TEST_P(UnpackOnDevice, BatchesEndInOrderAndSlotsAreBounded) {
  std::mt19937 random(3);
  std::vector<Placed> placed;
  std::vector<Unpacker::UnpackId> ids;
  std::uint64_t at = 0, from = 0;
  const test::FakeCuda fake = test::FakeCuda::find();
  {
    std::optional<test::FakeCudaHold> hold;
    if (fake) hold.emplace(fake, device->info().ordinal);
    for (std::size_t i = 0; i < Unpacker::kBatches; ++i) {
      placed.push_back({block_of(fragments(random, 700, 3000, from)), at});
      at += placed.back().block.bytes();
      const auto id = unpacker->begin(requests_of({placed.back()}));
      ASSERT_TRUE(id.ok()) << id.status().to_string();
      ids.push_back(*id);
    }
    EXPECT_EQ(unpacker->begin(requests_of({placed.back()})).status().code(), Code::no_resource);
    if (fake) {
      EXPECT_FALSE(unpacker->poll(ids[0]));
    }
  }
  EXPECT_TRUE(end_of(ids.back()).ok());
  for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
    const auto end = unpacker->poll(ids[i]);
    ASSERT_TRUE(end) << "the later one has ended";
    EXPECT_TRUE(end->ok());
  }
  EXPECT_EQ(unpacker->expected(base::Time()), base::Time::max());
  EXPECT_EQ(unpacker->poll(ids[0])->code(), Code::internal);
  expect_unpacked(placed);
}

TEST_P(UnpackOnDevice, WhatWasLinearIsLeftAlone) {
  RxMessage message{RxKernel::tcpx, 3000, 1000, {}, {}, {}};
  message.fragments = {{0, 64, 700}, {1200, 4099, 900}, {2600, 9000, 400}};
  message.linear = {{700, 0, 500}, {2100, 500, 500}};
  const auto block = take(DescriptorBlock::of(message, {kPool, 3000}));
  ASSERT_TRUE(run({{block, 5}}).ok());
  expect_unpacked({{block, 5}});
}

INSTANTIATE_TEST_SUITE_P(Tcpx, UnpackOnDevice,
                         ::testing::Values(Unpack::d2d, Unpack::host, Unpack::kernel),
                         [](const auto& way) { return std::string(name_of(way.param)); });

// ---- over a driver whose stream moves when the test says so ------------------------------------

class TcpxUnpack : public ::testing::Test {
 protected:
  static constexpr std::size_t kBytes = 100'000;

  void open(Unpack way) {
    copy::script = {};
    driver.cuLaunchKernel = [](cuda::CUfunction, unsigned ctas, unsigned, unsigned, unsigned,
                               unsigned, unsigned, unsigned, cuda::CUstream, void**, void**) {
      copy::script.ctas = ctas;
      return copy::script.launch;
    };
    auto opened = take(cuda::Device::open(driver, info));
    opened->load_kernels();
    device = std::move(opened);
    unpacker = take(Unpacker::create(*device, way, {}, clock));
  }
  /// Returns a block with each byte of the pool, from its end to its start.
  DescriptorBlock backwards(std::size_t count) const {
    std::vector<LoadMeta> entries;
    for (std::size_t i = 0; i < count; ++i)
      entries.push_back({static_cast<std::uint32_t>(count - 1 - i), 1, i});
    return block_of(entries, kBytes);
  }
  Result<Unpacker::UnpackId> begin(const DescriptorBlock& block) {
    const UnpackRequest request{.block = &block,
                                .bounce = copy::address(pool.data()),
                                .destination = copy::address(target.data())};
    return unpacker->begin({&request, 1});
  }

  cuda::Driver driver = copy::scripted_driver();
  const cuda::DeviceInfo info{.name = "scripted", .bus_id = "", .sm = 90, .sm_count = 2};
  base::FakeClock clock;
  std::unique_ptr<const cuda::Device> device;
  std::unique_ptr<Unpacker> unpacker;
  copy::Bytes pool = copy::Bytes(kBytes, 7), target = copy::Bytes(kBytes, copy::kPoison);
};

TEST_F(TcpxUnpack, TheStreamIsNeverFull) {
  open(Unpack::d2d);
  const DescriptorBlock block = backwards(2000);
  for (std::size_t i = 0; i < block.entries().size(); ++i)
    pool[i] = static_cast<unsigned char>(i % 251);
  const auto first = begin(block), second = begin(block);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(unpacker->expected(clock.now()), clock.now()) << "poll() brings the rest";
  std::size_t most = 0;
  std::optional<Status> end;
  for (int i = 0; i < 1000 && !(end = unpacker->poll(*second)); ++i) {
    most = std::max(most, copy::script.work.size());
    copy::script.run(37);
  }
  ASSERT_TRUE(end && end->ok());
  EXPECT_LE(most, MarkedStream::kEntries);
  EXPECT_GT(most, MarkedStream::kEntries / 2);
  EXPECT_TRUE(unpacker->poll(*first)->ok());
  for (std::size_t i = 0; i < 2000; ++i) ASSERT_EQ(target[i], (1999 - i) % 251);
  EXPECT_EQ(target[2000], copy::kPoison);
  EXPECT_EQ(copy::script.queries, 0);
}

TEST_F(TcpxUnpack, AnErrorBeforeTheFirstCopyLeavesNothingInFlight) {
  for (const Unpack way : {Unpack::d2d, Unpack::host, Unpack::kernel}) {
    if (way == Unpack::kernel && cuda::embedded_images().empty()) continue;
    open(way);
    copy::script.copies_until_error = 0;
    copy::script.launch = cuda::CUDA_ERROR_INVALID_VALUE;
    for (std::size_t i = 0; i < 2 * Unpacker::kBatches; ++i)
      EXPECT_EQ(begin(backwards(3)).status().code(), Code::cuda);
    EXPECT_EQ(unpacker->expected(clock.now()), base::Time::max());
    EXPECT_TRUE(copy::script.work.empty());
  }
}

TEST_F(TcpxUnpack, AnErrorAmongTheCopiesEndsTheBatchWhenTheOthersAreQuiet) {
  open(Unpack::d2d);
  copy::script.copies_until_error = 300;
  const auto failing = begin(backwards(400));
  ASSERT_TRUE(failing.ok());
  copy::script.copies_until_error = -1;
  const auto good = begin(backwards(10));
  ASSERT_TRUE(good.ok());
  EXPECT_FALSE(unpacker->poll(*failing));
  copy::script.run();
  EXPECT_EQ(unpacker->poll(*failing)->code(), Code::cuda);
  EXPECT_TRUE(unpacker->poll(*good)->ok());
}

TEST_F(TcpxUnpack, AWordThatCannotBeWrittenIsTheStreamsToTell) {
  open(Unpack::d2d);
  copy::script.write = cuda::CUDA_ERROR_INVALID_VALUE;
  const auto id = begin(backwards(5));
  ASSERT_TRUE(id.ok());
  EXPECT_FALSE(unpacker->poll(*id)) << "the copies are under way";
  copy::script.run();
  clock.advance(std::chrono::seconds(1));
  EXPECT_EQ(unpacker->poll(*id)->code(), Code::cuda);
}

TEST_F(TcpxUnpack, ALostContextEndsEveryBatchWithItsCause) {
  open(Unpack::d2d);
  const auto first = begin(backwards(2000)), second = begin(backwards(3));
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_FALSE(unpacker->poll(*first));
  copy::script.query = cuda::CUDA_ERROR_ILLEGAL_ADDRESS;
  clock.advance(std::chrono::seconds(1));
  EXPECT_EQ(unpacker->poll(*first)->scope(), Scope::process);
  EXPECT_EQ(unpacker->poll(*second)->scope(), Scope::process);
  EXPECT_EQ(begin(backwards(1)).status().scope(), Scope::process);
}

TEST_F(TcpxUnpack, WhatABatchDoesNotTakeIsSaid) {
  open(Unpack::host);
  const DescriptorBlock small = backwards(1);
  const std::vector<UnpackRequest> many(Unpacker::kRequests + 1, UnpackRequest{.block = &small});
  Status status = unpacker->begin(many).status();
  EXPECT_EQ(status.code(), Code::invalid_argument);
  EXPECT_NE(status.what().find("33 receives"), std::string::npos);
  const DescriptorBlock large = block_of({{0, (16u << 20) + 1, 0}});
  const UnpackRequest one{.block = &large};
  status = unpacker->begin({&one, 1}).status();
  EXPECT_EQ(status.code(), Code::invalid_argument);
  EXPECT_NE(status.what().find("16777217 bytes"), std::string::npos);
  const UnpackRequest none{};
  EXPECT_EQ(unpacker->begin({&none, 1}).status().code(), Code::invalid_argument);
}

TEST_F(TcpxUnpack, NoCtaIsNoKernel) {
  open(Unpack::d2d);
  const auto made = Unpacker::create(*device, Unpack::kernel, {.ctas = 0}, clock);
  EXPECT_EQ(made.status().code(), Code::unsupported);
}

TEST(TcpxUnpackChoice, TheOptionWinsOverTheEnvironmentAndThatOverTheFallback) {
  EXPECT_EQ(take(choose_unpack("", std::nullopt, Unpack::kernel)), Unpack::kernel);
  EXPECT_EQ(take(choose_unpack("", Unpack::host, Unpack::kernel)), Unpack::host);
  EXPECT_EQ(take(choose_unpack("d2d", Unpack::host, Unpack::kernel)), Unpack::d2d);
  const Status status = choose_unpack("gpu", std::nullopt, Unpack::kernel).status();
  EXPECT_EQ(status.code(), Code::invalid_argument);
  EXPECT_NE(status.what().find("\"gpu\": set d2d, host or kernel"), std::string::npos);
}

}  // namespace tcpx_unpack_test
}  // namespace linkspan::transport::nccl_net::tcpx
