// Tests that a LocalPath is found again after what it was found by has changed: a region or a
// mapping that ended, or a GPU that came up.
#include "transport/local/local_path.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "memory/registry.hpp"
#include "tests/support/kinds.hpp"
#include "tests/support/take.hpp"
#include "transport/local/local_transport.hpp"

namespace linkspan::transport::local {
namespace local_path_test {

using test::Buffer;
using test::Make;
using test::must;
using test::take;
using namespace std::chrono_literals;

constexpr std::uint64_t kOurs = 11, kTheirs = 77, kBytes = 8192, kGpuBytes = 5u << 20;

/// One Engine's parts: registry and transport.
struct Half {
  Half(std::uint64_t incarnation, cuda::Topology* topology) : registry(incarnation, topology) {
    auto made = take(LocalTransport::create(
        {.topology = topology, .registry = &registry, .incarnation = incarnation}));
    transport.reset(static_cast<LocalTransport*>(made.release()));
  }
  const memory::Region& publish(void* data, std::uint64_t bytes) {
    registrations.push_back(take(registry.add(data, bytes, {.read = true, .write = true}, false)));
    key = take(transport->publish(registrations.back()->region()));
    return registrations.back()->region();
  }
  /// Imports what `owner` has published last, as another process does.
  std::shared_ptr<ImportedMemory> import_from(Half& owner) const {
    std::vector<base::Fd> fds = take(memory::fds_for_peer(owner.key));
    return take(transport->import_memory({.bytes = owner.key.bytes, .fds = fds},
                                         base::Deadline::after(base::Clock::steady(), 10s)));
  }

  memory::Registry registry;
  std::vector<std::shared_ptr<const memory::Registration>> registrations;
  memory::PublishedKey key;  // of the last
  std::unique_ptr<LocalTransport> transport;
};

class LocalPathTest : public ::testing::Test {
 protected:
  LocalPathTest() {
    (void)theirs_.publish(their_memory_.data(), kBytes);
    remote_ = ours_.import_from(theirs_);
  }

  std::vector<std::byte> our_memory_{kBytes}, their_memory_{kBytes};
  Half ours_{kOurs, nullptr}, theirs_{kTheirs, nullptr};
  std::shared_ptr<ImportedMemory> remote_;
};

TEST_F(LocalPathTest, StaysAsItIs_WhileNothingHasChanged) {
  const memory::Region& local = ours_.publish(our_memory_.data(), kBytes);
  LocalPath path;
  ASSERT_TRUE(ours_.transport->update(path, local, *remote_));
  const std::uint64_t epoch = path.epoch;
  EXPECT_NE(epoch, 0u);
  EXPECT_TRUE(ours_.transport->update(path, local, *remote_));
  EXPECT_EQ(path.epoch, epoch);
}

TEST_F(LocalPathTest, HasNoRegion_AfterItsRegionIsRetracted) {
  const memory::Region& local = ours_.publish(our_memory_.data(), kBytes);
  LocalPath path;
  ASSERT_TRUE(ours_.transport->update(path, local, *remote_));
  const auto kept = path.local.lock();  // as by a batch in flight
  must(ours_.transport->retract(local, false));
  EXPECT_FALSE(ours_.transport->update(path, local, *remote_));
}

TEST_F(LocalPathTest, HasNoRegion_AfterItsRegionIsForgotten) {
  const memory::Region& local = ours_.publish(our_memory_.data(), kBytes);
  LocalPath path;
  ASSERT_TRUE(ours_.transport->update(path, local, *remote_));
  must(ours_.transport->forget(local));
  EXPECT_FALSE(ours_.transport->update(path, local, *remote_));
}

/// The peer's memory is a GPU's. This side has a Topology of its own, in which no GPU is up.
class LocalPathOnDevice : public ::testing::Test {
 protected:
  void start(unsigned gpus, unsigned owner) {
    if (const Status status = test::need_gpus(gpus); !status.ok())
      GTEST_SKIP() << status.to_string();
    topology_ = take(cuda::Topology::create());
    theirs_ = std::make_unique<Half>(kTheirs, test::topology());
    ours_ = std::make_unique<Half>(kOurs, topology_.get());
    their_memory_ =
        take(Buffer::create(MemoryKind::device, kGpuBytes, owner, Buffer::kGuard, Make::chunks));
    (void)theirs_->publish(their_memory_->data(), kGpuBytes);
  }
  const memory::Region& host_region() { return ours_->publish(our_memory_.data(), kBytes); }
  const GpuUuid& uuid(unsigned gpu) const { return topology_->devices()[gpu].uuid; }

  std::unique_ptr<cuda::Topology> topology_;
  std::unique_ptr<Buffer> their_memory_, our_gpu_memory_;
  std::vector<std::byte> our_memory_{kBytes};
  std::unique_ptr<Half> theirs_, ours_;
};

TEST_F(LocalPathOnDevice, MapsNothing_AfterTheOwnerTookTheRegionBack) {
  start(1, 0);
  if (IsSkipped()) return;
  const auto remote = ours_->import_from(*theirs_);
  const memory::Region& local = host_region();
  LocalPath path;
  ASSERT_TRUE(ours_->transport->update(path, local, *remote));
  EXPECT_EQ(path.kind.mapped, Mapped::cuda_vmm) << remote->why_not_mapped();
  EXPECT_NE(path.remote_address, 0u);
  EXPECT_TRUE(ours_->transport->unmap(remote->key().id));
  ASSERT_TRUE(ours_->transport->update(path, local, *remote));
  EXPECT_EQ(path.kind.mapped, Mapped::nothing);
  EXPECT_EQ(path.remote_address, 0u);
}

TEST_F(LocalPathOnDevice, MapsNothing_AfterItsMappingIsUnmapped) {
  start(1, 0);
  if (IsSkipped()) return;
  const LocalMapping mapping(ours_->import_from(*theirs_));
  const memory::Region& local = host_region();
  LocalPath& path = mapping.last_path();
  ASSERT_TRUE(ours_->transport->update(path, local, *mapping.memory()));
  EXPECT_EQ(path.kind.mapped, Mapped::cuda_vmm) << mapping.memory()->why_not_mapped();
  EXPECT_NE(path.remote_address, 0u);
  ours_->transport->unmap(mapping);
  ASSERT_TRUE(ours_->transport->update(path, local, *mapping.memory()));
  EXPECT_EQ(path.kind.mapped, Mapped::nothing);
  EXPECT_EQ(path.remote_address, 0u);
}

TEST_F(LocalPathOnDevice, IsByTheGpuOfTheMemory_OnceThatIsUp) {
  start(2, 1);
  if (IsSkipped()) return;
  (void)take(topology_->activate(uuid(0)));
  const auto remote = ours_->import_from(*theirs_);
  const memory::Region& local = host_region();
  LocalPath path;
  ASSERT_TRUE(ours_->transport->update(path, local, *remote));
  ASSERT_NE(path.kind.device, nullptr) << remote->why_not_mapped();
  EXPECT_EQ(path.kind.device->info().uuid, uuid(0));
  our_gpu_memory_ = take(Buffer::create(MemoryKind::device, kBytes, 1));
  (void)ours_->publish(our_gpu_memory_->data(), kBytes);
  ASSERT_TRUE(ours_->transport->update(path, local, *remote));
  EXPECT_EQ(path.kind.device->info().uuid, uuid(1));
  EXPECT_NE(path.copiers, nullptr);
}

}  // namespace local_path_test
}  // namespace linkspan::transport::local
