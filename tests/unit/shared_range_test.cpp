// Tests keys of chunks and pools as a peer may send them, honest or not: made in this process and
// read as another one's.
#include "cuda/shared_range.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <thread>

#include "base/fd_bundle.hpp"
#include "memory/registry.hpp"
#include "tests/support/kinds.hpp"
#include "tests/support/take.hpp"
#include "transport/local/local_transport.hpp"

namespace linkspan::transport::local {
namespace shared_range_test {

using test::Buffer;
using test::ChunkRow;
using test::Make;
using test::must;
using test::take;
using namespace std::chrono_literals;

constexpr std::uint64_t kOurs = 11, kBytes = 5u << 20;

class SharedRangeOnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Status status = test::need_gpus(1); !status.ok()) GTEST_SKIP() << status.to_string();
    registry_ = std::make_unique<memory::Registry>(kOurs, test::topology());
    auto made = take(LocalTransport::create(
        {.topology = test::topology(), .registry = registry_.get(), .incarnation = kOurs}));
    transport_.reset(static_cast<LocalTransport*>(made.release()));
  }
  std::shared_ptr<const memory::Registration> add(Make make) {
    buffer_ = take(Buffer::create(MemoryKind::device, kBytes, 0, Buffer::kGuard, make));
    return take(registry_->add(buffer_->data(), kBytes, {.read = true, .write = true}, false));
  }
  /// Imports the memory by its key and fds, as another process's, after `change`.
  template <class Change>
  Result<std::shared_ptr<ImportedMemory>> import(Make make, Change change) {
    registrations_.push_back(add(make));
    auto published = take(transport_->publish(registrations_.back()->region()));
    EXPECT_TRUE(published.last_fd != nullptr);
    std::vector<base::Fd> fds = take(memory::fds_for_peer(published));
    LocalKey key = take(decode_key(published.bytes));
    ++key.process.nonce;
    change(key, fds);
    return transport_->import_memory({encode(key), fds},
                                     base::Deadline::after(base::Clock::steady(), 10s));
  }
  Code refused(Make make, const std::function<void(LocalKey&, std::vector<base::Fd>&)>& change) {
    auto made = import(make, change);
    const Code code = made.status().code();
    if (made.ok()) made->reset();
    must(transport_->retract(registrations_.back()->region(), false));
    return code;
  }

  std::unique_ptr<Buffer> buffer_;
  std::unique_ptr<memory::Registry> registry_;
  std::vector<std::shared_ptr<const memory::Registration>> registrations_;
  std::unique_ptr<LocalTransport> transport_;
};

TEST_F(SharedRangeOnDevice, ARowOfChunksIsOneMapping) {
  auto made = take(import(Make::chunks, [](LocalKey& key, auto&) {
    EXPECT_EQ(key.handle.chunks->count, 4u);
    EXPECT_EQ(key.handle.chunks->bytes, 4 * ChunkRow::kChunk);
  }));
  EXPECT_EQ(made->mapped(), Mapped::cuda_vmm) << made->why_not_mapped();
  EXPECT_EQ(made->range()->bytes(), 4 * ChunkRow::kChunk);
}

TEST_F(SharedRangeOnDevice, AnAllocationOfAPoolIsOneMapping) {
  auto made = take(import(Make::pool, [](LocalKey& key, auto&) { EXPECT_TRUE(key.handle.pool); }));
  EXPECT_EQ(made->mapped(), Mapped::cuda_pool) << made->why_not_mapped();
}

/// A retract says that nothing is mapped here any more: what is being mapped has to be seen, too.
TEST_F(SharedRangeOnDevice, WhatIsLetGoWhileItIsImportedIsClosedOrToldOf) {
  const auto one = add(Make::chunks);
  auto published = take(transport_->publish(one->region()));
  LocalKey key = take(decode_key(published.bytes));
  ++key.process.nonce;
  for (int round = 0; round < 50; ++round) {
    std::vector<base::Fd> fds = take(memory::fds_for_peer(published));
    std::atomic<bool> imported = false;
    std::thread retracts([&] {
      while (!imported) transport_->unmap(key.id);
    });
    const auto made = transport_->import_memory({encode(key), fds},
                                                base::Deadline::after(base::Clock::steady(), 10s));
    imported = true;
    retracts.join();
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    ASSERT_TRUE(transport_->maps(key.id) || (*made)->range() == nullptr) << round;
    transport_->unmap(key.id);
    EXPECT_EQ((*made)->range(), nullptr);
  }
}

TEST_F(SharedRangeOnDevice, AKeyThatClaimsWhatIsNotThereIsCorrupt) {
  const auto chunks = [&](const std::function<void(LocalKey&, std::vector<base::Fd>&)>& change) {
    return refused(Make::chunks, change);
  };
  EXPECT_EQ(chunks([](LocalKey&, auto&) {}), Code::ok);
  EXPECT_EQ(chunks([](LocalKey& key, auto&) { ++key.handle.chunks->count; }), Code::corrupt);
  EXPECT_EQ(chunks([](LocalKey& key, auto&) { --key.handle.chunks->count; }), Code::corrupt);
  EXPECT_EQ(
      chunks([](LocalKey& key, auto&) { key.handle.chunks->count = base::FdBundle::kMax + 1; }),
      Code::corrupt);
  EXPECT_EQ(chunks([](LocalKey& key, auto&) { key.handle.chunks->bytes += ChunkRow::kChunk; }),
            Code::corrupt);
  EXPECT_EQ(chunks([](LocalKey& key, auto&) { key.handle.chunks->bytes -= ChunkRow::kChunk; }),
            Code::corrupt);
  EXPECT_EQ(chunks([](LocalKey& key, auto&) { key.bytes = 64 * ChunkRow::kChunk; }), Code::corrupt);
  EXPECT_EQ(chunks([](LocalKey& key, auto&) { key.handle.ipc.emplace(); }), Code::corrupt);
  EXPECT_EQ(chunks([](LocalKey& key, auto&) { key.kind = MemoryKind::shared; }), Code::corrupt);
  EXPECT_EQ(chunks([](LocalKey& key, auto&) {
              key.handle.chunks.reset();
              key.handle.memfd = true;
            }),
            Code::corrupt);
  EXPECT_EQ(chunks([](LocalKey&, auto& fds) { fds.pop_back(); }), Code::corrupt);
  EXPECT_EQ(chunks([](LocalKey&, auto& fds) {
              fds[1] = take(base::Fd::from("memfd_create", ::memfd_create("no", MFD_CLOEXEC)));
            }),
            Code::corrupt);
  EXPECT_EQ(refused(Make::pool, [](LocalKey& key, auto&) { key.bytes = std::uint64_t{1} << 50; }),
            Code::corrupt);
}

/// This process may be unable to import from that GPU; then the peer copies.
TEST_F(SharedRangeOnDevice, WhatTheDriverDoesNotTakeIsNotMapped) {
  auto made = take(import(Make::chunks, [](LocalKey&, std::vector<base::Fd>& fds) {
    base::FdBundle parcel = take(base::FdBundle::create());
    for (int i = 0; i < 4; ++i)
      must(parcel.put(take(base::Fd::from("memfd_create", ::memfd_create("no", MFD_CLOEXEC))),
                      ChunkRow::kChunk));
    fds[1] = take(parcel.seal());
  }));
  EXPECT_EQ(made->mapped(), Mapped::nothing);
  EXPECT_NE(made->why_not_mapped().find("cuMemImportFromShareableHandle"), std::string::npos)
      << made->why_not_mapped();
}

TEST_F(SharedRangeOnDevice, TheRegistryWalksTheChunks) {
  const auto one = add(Make::chunks);
  const memory::Region::Facts& facts = one->region().facts();
  ASSERT_EQ(facts.chunks.size(), 4u);
  EXPECT_EQ(facts.allocation, buffer_->row().base());
  EXPECT_EQ(facts.allocation_bytes, 4 * ChunkRow::kChunk);
  EXPECT_EQ(facts.id.buffer, facts.chunks[0].buffer);
  buffer_->row().remap(1);
  const auto two =
      take(registry_->add(buffer_->data(), kBytes, {.read = true, .write = true}, false));
  EXPECT_EQ(two->region().facts().chunks[0].buffer, facts.chunks[0].buffer);
  EXPECT_NE(two->region().facts().chunks[1].buffer, facts.chunks[1].buffer);
  buffer_->row().unmap(2);
  const Status gap =
      registry_->add(buffer_->data(), kBytes, {.read = true, .write = true}, false).status();
  EXPECT_EQ(gap.code(), Code::invalid_argument) << gap.to_string();
  EXPECT_TRUE(registry_->add(buffer_->data(), 1u << 20, {.read = true}, false).ok());
}

}  // namespace shared_range_test
}  // namespace linkspan::transport::local
