// Tests comms with GPU memory: flushed if the device type is HOST, unpacked if it is UNPACK (here
// by a copy for each fragment of the list).
#include <cstring>
#include <map>

#include "tests/support/nccl_net_plugin/abi.hpp"
#include "tests/unit/cuda_fixture.hpp"
#include "tests/unit/nccl_net_fixture.hpp"

namespace linkspan::transport::nccl_net {
namespace nccl_net_gpu_test {

constexpr int kTag = 3;
constexpr std::byte kBefore{0xEE};
constexpr std::byte kSpoiled{0xA5};  // by the plugin, when a receive was consumed

class GpuTools : public cuda::OnDevice, protected PluginTools {
 protected:
  /// Memory of the GPU whose begin is aligned as TCPX wants it.
  struct Gpu {
    cuda::DeviceBuffer buffer;
    cuda::CUdeviceptr address;
    void* data() const { return reinterpret_cast<void*>(address); }
  };
  Gpu gpu_memory(std::size_t bytes) const {
    cuda::DeviceBuffer buffer = take(cuda::DeviceBuffer::create(*scope, bytes + 4096));
    const cuda::CUdeviceptr address = (buffer.address() + 4095) / 4096 * 4096;
    return {std::move(buffer), address};
  }
  void write(cuda::CUdeviceptr to, const Bytes& bytes) const {
    const auto stream = take(cuda::Stream::create(*scope));
    const auto pinned = take(cuda::PinnedBuffer::create(*scope, bytes.size()));
    std::memcpy(pinned.data(), bytes.data(), bytes.size());
    must(stream.copy(*scope, to, pinned.device_address(), bytes.size()));
    must(stream.synchronize(*scope));
  }
  Bytes read(cuda::CUdeviceptr from, std::size_t bytes) const {
    const auto stream = take(cuda::Stream::create(*scope));
    const auto pinned = take(cuda::PinnedBuffer::create(*scope, bytes));
    must(stream.copy(*scope, pinned.device_address(), from, bytes));
    must(stream.synchronize(*scope));
    return {pinned.data(), pinned.data() + bytes};
  }
};

class NcclNetOnDevice : public GpuTools, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Every, NcclNetOnDevice, ::testing::Values(5, 6, 8, 9, 10, 11, 12),
                         name_of_version);

TEST_P(NcclNetOnDevice, WhatWasReceivedIsThereBehindAFlush) {
  constexpr std::size_t kBytes = 300'001, kAt = 4097;
  const auto plugin = take(load(GetParam()));
  ASSERT_TRUE(plugin->devices()[0].supports(abi::kCuda));
  const Pair pair = connect(plugin);
  EXPECT_EQ(pair.receive->kernels(), nullptr);
  const Gpu from = gpu_memory(2 * kBytes), to = gpu_memory(2 * kBytes);
  const auto source = take(pair.send->add_memory(from.data(), 2 * kBytes, abi::kCuda));
  const auto target = take(pair.receive->add_memory(to.data(), 2 * kBytes, abi::kCuda));
  for (std::uint64_t round = 0; round < 40; ++round) {
    const std::size_t bytes = round % 8 == 0 ? round / 8 : kBytes - round;
    const Bytes sent = pattern_of(bytes + 1, round), before(bytes + 1, kBefore);
    write(from.address + kAt, sent);
    write(to.address + kAt, before);
    void* const into = reinterpret_cast<void*>(to.address + kAt);
    must(pair.receive->receive(into, bytes, kTag, *target, round));
    must(pair.send->send(reinterpret_cast<void*>(from.address + kAt), bytes, kTag, *source, round));
    Result<std::optional<Done>> arrived = std::optional<Done>();
    until([&] {
      (void)take(pair.send->test());
      arrived = pair.receive->test();
      return take(arrived).has_value();
    });
    EXPECT_EQ((*arrived)->bytes, bytes);
    if (round < 3) {
      EXPECT_EQ(read(to.address + kAt, bytes + 1), before) << "too soon";
    }
    void* const flush = take(pair.receive->flush(into, bytes, *target));
    EXPECT_EQ(flush == nullptr, bytes == 0);
    until([&] { return take(pair.receive->flushed(flush)); });
    must(pair.receive->consumed(**arrived));
    Bytes due = sent;
    due.back() = kBefore;  // after the message
    ASSERT_EQ(read(to.address + kAt, bytes + 1), due) << "round " << round;
    if (pair.send->in_flight() != 0) (void)done(*pair.send);
  }
  EXPECT_FALSE(said("WARNING")) << Lines::all().text();
}

TEST_P(NcclNetOnDevice, MemoryThatIsNeverFlushedIsSeen) {
  const Pair pair = connect(take(load(GetParam())));
  const Gpu to = gpu_memory(4096);
  Bytes from(16);
  const auto source = take(pair.send->add_memory(from.data(), 16, abi::kHost));
  const auto target = take(pair.receive->add_memory(to.data(), 4096, abi::kCuda));
  Status status;
  for (int i = 0; i <= pair.send->plugin().max_requests(0) && status.ok(); ++i) {
    status = pair.receive->receive(to.data(), 16, kTag, *target, 0);
    if (!status.ok()) break;
    must(pair.send->send(from.data(), 16, kTag, *source, 0));
    (void)done(*pair.send);
    (void)done(*pair.receive);
  }
  EXPECT_EQ(status.code(), Code::invalid_argument);
  EXPECT_TRUE(said("never flushed"));
}

TEST_P(NcclNetOnDevice, MemoryThatWasGivenBackIsNotFlushedInto) {
  const Pair pair = connect(take(load(GetParam())));
  const Gpu first = gpu_memory(4096), second = gpu_memory(4096);
  write(first.address, Bytes(16, kBefore));
  Bytes from(16);
  const auto source = take(pair.send->add_memory(from.data(), 16, abi::kHost));
  auto target = take(pair.receive->add_memory(first.data(), 4096, abi::kCuda));
  must(pair.receive->receive(first.data(), 16, kTag, *target, 0));
  must(pair.send->send(from.data(), 16, kTag, *source, 0));
  (void)done(*pair.receive);
  target = take(pair.receive->add_memory(second.data(), 4096, abi::kCuda));
  EXPECT_EQ(take(pair.receive->flush(second.data(), 16, *target)), nullptr);
  EXPECT_EQ(read(first.address, 16), Bytes(16, kBefore));
}

TEST_P(NcclNetOnDevice, TheGpuIsTheOneThatWasCurrent) {
  const auto plugin = take(load(GetParam()));
  const Gpu memory = gpu_memory(4096);
  Pair pair = connect(plugin);
  if (topology->devices().size() > 1) {
    const cuda::Device* const second = take(topology->activate(topology->devices()[1].uuid));
    const auto there = entered(*second);
    const auto others = take(cuda::DeviceBuffer::create(*there, 4096));
    EXPECT_FALSE(pair.send->add_memory(memory.data(), 4096, abi::kCuda).ok());
    EXPECT_TRUE(said("the comm's GPU is not current"));
    const auto here = entered(*device);
    void* const address = reinterpret_cast<void*>(others.address());
    EXPECT_FALSE(pair.send->add_memory(address, 4096, abi::kCuda).ok());
    EXPECT_TRUE(said("no memory of the comm's GPU"));
  }
  Bytes host(4096);
  EXPECT_FALSE(pair.send->add_memory(host.data(), host.size(), abi::kCuda).ok());
  scope.reset();
  pair = connect(plugin);
  scope = entered(*device);
  EXPECT_FALSE(pair.receive->add_memory(memory.data(), 4096, abi::kCuda).ok());
  EXPECT_TRUE(said("no GPU was current at listen or connect"));
  EXPECT_TRUE(pair.receive->add_memory(host.data(), host.size(), abi::kHost).ok());
}

// ---- the UNPACK device type ---------------------------------------------------------------------

class NcclNetUnpackOnDevice : public GpuTools {
 protected:
  static constexpr std::size_t kMax = std::size_t{4} << 20;

  /// Connects, and checks what a kernel would find.
  void open() {
    pair = connect(take(load(7)));
    const abi::DeviceHandle* const kernels = pair.receive->kernels();
    ASSERT_NE(kernels, nullptr);
    EXPECT_EQ(kernels->type, abi::kDeviceUnpack);
    EXPECT_EQ(kernels->version, 7);
    ASSERT_EQ(kernels->size, sizeof handle);
    std::memcpy(&handle,
                read(reinterpret_cast<cuda::CUdeviceptr>(kernels->handle), sizeof handle).data(),
                sizeof handle);
    EXPECT_EQ(handle.head, 0u);
    meta = reinterpret_cast<const nccl_test::UnpackMeta*>(handle.meta);
    cuda::CUdeviceptr base = 0;
    ASSERT_EQ(device->driver().cuMemGetAddressRange(&base, &pool_bytes, handle.bounce_pool),
              cuda::CUDA_SUCCESS);
    EXPECT_EQ(base, handle.bounce_pool);
    message = pattern_of(kMax, 5);
    from = std::make_unique<Gpu>(gpu_memory(kMax));
    write(from->address, message);
    source = take(pair.send->add_memory(from->data(), kMax, abi::kCuda));
    to = std::make_unique<Gpu>(gpu_memory(kMax + 1));
    target = take(pair.receive->add_memory(to->data(), kMax, abi::kCuda));
  }
  void TearDown() override {
    source.reset();
    target.reset();
    pair = {};
    cuda::OnDevice::TearDown();
  }
  Done bring(std::size_t bytes) {
    must(pair.receive->receive(to->data(), bytes, kTag, *target, 0));
    must(pair.send->send(from->data(), bytes, kTag, *source, 0));
    Result<std::optional<Done>> arrived = std::optional<Done>();
    until([&] {
      (void)take(pair.send->test());
      arrived = pair.receive->test();
      return take(arrived).has_value();
    });
    return **arrived;
  }
  std::span<const nccl_test::UnpackEntry> list(std::size_t slot) const {
    return {meta->mem[slot], std::min(meta->cnt[slot], nccl_test::kUnpackFragments)};
  }

  Pair pair;
  nccl_test::UnpackHandle handle{};
  const nccl_test::UnpackMeta* meta = nullptr;
  std::size_t pool_bytes = 0;
  Bytes message;  // what `from` holds
  std::unique_ptr<Gpu> from, to;
  std::unique_ptr<Comm::CommRegistration> source, target;
};

TEST_F(NcclNetUnpackOnDevice, TheListsSayWhereEachByteIs) {
  open();
  const std::size_t kSizes[] = {70001, 0, 1, 4096, kMax, 12345, 4097, 1 << 20};
  const auto stream = take(cuda::Stream::create(*scope));
  bool shuffled = false;
  for (std::size_t n = 0; n < 40; ++n) {
    const std::size_t bytes = kSizes[n % std::size(kSizes)], slot = n % nccl_test::kUnpackSlots;
    write(to->address, Bytes(bytes + 1, kBefore));
    const Done done = bring(bytes);
    EXPECT_EQ(done.bytes, bytes);
    std::map<std::uint64_t, std::uint64_t> places;  // in the message, and in the pool
    std::map<std::uint64_t, std::uint64_t> in_pool;
    for (const nccl_test::UnpackEntry& e : list(slot)) {
      ASSERT_LE(e.len, bytes);
      ASSERT_LE(e.dst_off, bytes - e.len);
      ASSERT_LE(e.len, pool_bytes);
      ASSERT_LE(e.src_off, pool_bytes - e.len);
      ASSERT_GT(e.len, 0u);
      shuffled |= !places.empty() && places.rbegin()->first > e.dst_off;
      places[e.dst_off] = e.dst_off + e.len;
      in_pool[e.src_off] = e.src_off + e.len;
      must(stream.copy(*scope, to->address + e.dst_off, handle.bounce_pool + e.src_off, e.len));
    }
    must(stream.synchronize(*scope));
    std::uint64_t end = 0;
    for (const auto& [begin, behind] : places) EXPECT_EQ(begin, std::exchange(end, behind));
    EXPECT_EQ(end, bytes);
    end = 0;
    for (const auto& [begin, behind] : in_pool) EXPECT_GE(begin, std::exchange(end, behind));
    Bytes due(message.begin(), message.begin() + static_cast<std::ptrdiff_t>(bytes));
    due.push_back(kBefore);
    ASSERT_EQ(read(to->address, bytes + 1), due) << "message " << n;
    must(pair.receive->consumed(done));
    EXPECT_EQ(meta->cnt[slot], 0u);
    ASSERT_EQ(device->driver().cuCtxSynchronize(), cuda::CUDA_SUCCESS);
    if (!in_pool.empty()) {
      const auto [begin, behind] = *in_pool.begin();
      EXPECT_EQ(read(handle.bounce_pool + begin, behind - begin), Bytes(behind - begin, kSpoiled));
    }
  }
  EXPECT_TRUE(shuffled);
  EXPECT_FALSE(said("WARNING")) << Lines::all().text();
}

TEST_F(NcclNetUnpackOnDevice, FragmentsAreAsLargeAsAskedAndNeverTooMany) {
  set("FRAGMENT", "64");
  open();
  (void)bring(6400);
  EXPECT_GE(list(0).size(), 100u);
  for (const nccl_test::UnpackEntry& e : list(0)) EXPECT_LE(e.len, 64u);
  (void)bring(kMax);
  EXPECT_LE(list(1).size(), nccl_test::kUnpackFragments);
  std::uint64_t total = 0;
  for (const nccl_test::UnpackEntry& e : list(1)) total += e.len;
  EXPECT_EQ(total, kMax);
}

TEST_F(NcclNetUnpackOnDevice, HostMemoryNeedsNoUnpackAndTakesASlotToo) {
  open();
  Bytes here(100);
  const auto host = take(pair.receive->add_memory(here.data(), here.size(), abi::kHost));
  must(pair.receive->receive(here.data(), 100, kTag, *host, 0));
  must(pair.send->send(from->data(), 100, kTag, *source, 0));
  (void)done(*pair.send);
  const Done first = done(*pair.receive);
  EXPECT_EQ(std::memcmp(here.data(), message.data(), 100), 0);
  EXPECT_EQ(meta->cnt[0], 0u);
  (void)bring(100);
  EXPECT_EQ(meta->cnt[0], 0u);
  EXPECT_NE(meta->cnt[1], 0u);
  must(pair.receive->consumed(first));
}

TEST_F(NcclNetUnpackOnDevice, EachOfThoseInFlightHasItsSlot) {
  constexpr std::size_t kPart = std::size_t{64} << 10;
  open();
  for (int round = 0; round < 3; ++round) {
    for (std::size_t n = 0; n < nccl_test::kUnpackSlots; ++n)
      must(pair.receive->receive(static_cast<std::byte*>(to->data()) + n * kPart, kPart, kTag,
                                 *target, n));
    for (std::size_t n = 0; n < nccl_test::kUnpackSlots; ++n)
      must(pair.send->send(static_cast<std::byte*>(from->data()) + n * kPart, kPart - n, kTag,
                           *source, n));
    std::vector<Done> all;
    until([&] {
      (void)take(pair.send->test());
      if (const std::optional<Done> one = take(pair.receive->test())) all.push_back(*one);
      return all.size() == nccl_test::kUnpackSlots && pair.send->in_flight() == 0;
    });
    for (std::size_t n = 0; n < all.size(); ++n) {
      EXPECT_EQ(all[n].cookie, n);
      EXPECT_EQ(all[n].bytes, kPart - n);
      Bytes got(kPart - n);
      for (const nccl_test::UnpackEntry& e : list(n)) {
        const Bytes fragment = read(handle.bounce_pool + e.src_off, e.len);
        ASSERT_LE(e.dst_off + e.len, got.size());
        std::copy(fragment.begin(), fragment.end(),
                  got.begin() + static_cast<std::ptrdiff_t>(e.dst_off));
      }
      EXPECT_EQ(std::memcmp(got.data(), message.data() + n * kPart, got.size()), 0) << n;
    }
    for (const Done& each : all) must(pair.receive->consumed(each));
  }
  EXPECT_FALSE(said("WARNING")) << Lines::all().text();
}

TEST_F(NcclNetUnpackOnDevice, GpuMemoryIsAligned) {
  open();
  void* const odd = reinterpret_cast<void*>(to->address + 256);
  EXPECT_EQ(pair.receive->add_memory(odd, 4096, abi::kCuda).status().code(),
            Code::invalid_argument);
  EXPECT_FALSE(said("WARNING")) << "the plugin was asked";
  void* memory = nullptr;
  EXPECT_EQ(pair.receive->plugin().net().register_memory(pair.receive->raw(), odd, 4096, abi::kCuda,
                                                         memory),
            abi::kInvalidArgument);
  EXPECT_TRUE(said("not aligned to 4096 bytes"));
}

TEST_F(NcclNetUnpackOnDevice, ListsCanBeWrong) {
  constexpr std::size_t kBytes = 70001;
  for (const std::string fault : {"short", "lost", "overlap", "outside", "beyond"}) {
    set("LIST", fault + ":2");
    TearDown();
    open();
    for (std::size_t n = 0; n < 3; ++n) {
      const Done done = bring(kBytes);
      std::uint64_t total = 0, outside = 0, beyond = 0;
      std::map<std::uint64_t, int> begins;
      for (const nccl_test::UnpackEntry& e : list(n)) {
        total += e.len;
        outside += e.src_off + std::uint64_t{e.len} > pool_bytes ? 1u : 0u;
        beyond += e.dst_off + e.len > kBytes ? 1u : 0u;
        ++begins[e.dst_off];
      }
      const auto is = [&](const char* name) { return n == 1 && fault == name; };
      EXPECT_EQ(total == kBytes, !is("short") && !is("lost")) << fault << n;
      EXPECT_EQ(outside, is("outside") ? 1u : 0u) << fault << n;
      EXPECT_EQ(beyond, is("beyond") ? 1u : 0u) << fault << n;
      EXPECT_EQ(begins.size() < list(n).size(), is("overlap")) << fault << n;
      must(pair.receive->consumed(done));
    }
  }
}

}  // namespace nccl_net_gpu_test
}  // namespace linkspan::transport::nccl_net
