#include "memory/registry.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "cuda/memory.hpp"
#include "cuda/topology.hpp"
#include "memory/descriptor.hpp"
#include "tests/support/no_memory.hpp"
#include "tests/support/take.hpp"

namespace linkspan::memory {
namespace registry_test {

using Found = std::shared_ptr<const Registration>;
using test::must;

Found take(Result<Found> made) {
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return made.ok() ? *made : nullptr;
}

/// Three pages, of which the middle one is not mapped.
class Hole {
 public:
  Hole()
      : page_(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))),
        at_(static_cast<std::byte*>(::mmap(nullptr, 3 * page_, PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    ::munmap(at_ + page_, page_);
  }
  ~Hole() {
    ::munmap(at_, page_);
    ::munmap(at_ + 2 * page_, page_);
  }
  Hole(const Hole&) = delete;
  Hole& operator=(const Hole&) = delete;
  std::byte* data() const { return at_; }
  std::size_t page() const { return page_; }

 private:
  std::size_t page_;
  std::byte* at_;
};

class RegistryTest : public testing::Test {
 protected:
  Registry registry{77, nullptr};
  std::vector<std::byte> memory = std::vector<std::byte>(100000);
};

TEST_F(RegistryTest, RegistersHostMemory) {
  const Found made =
      take(registry.add(memory.data() + 3, 1001, {.read = true, .exclusive = true}, false));
  const Region::Facts& facts = made->region().facts();
  EXPECT_EQ(facts.kind, MemoryKind::host);
  EXPECT_EQ(facts.address, reinterpret_cast<std::uintptr_t>(memory.data() + 3));
  EXPECT_EQ(facts.bytes, 1001u);
  EXPECT_TRUE(facts.peers.read && facts.peers.exclusive && !facts.peers.write);
  EXPECT_EQ(facts.id.incarnation, 77u);
  EXPECT_EQ(facts.memfd, nullptr);
  EXPECT_FALSE(made->pinned());
  EXPECT_EQ(registry.find(made->id()), made);
  EXPECT_EQ(registry.all(), std::vector{made});
}

TEST_F(RegistryTest, EachRegistrationHasItsOwnId) {
  const RegionId first = take(registry.add(memory.data(), 10, {}, false))->id();
  const RegionId second = take(registry.add(memory.data(), 10, {}, false))->id();
  EXPECT_NE(first, second);
  ASSERT_TRUE(registry.remove(first).ok());
  EXPECT_NE(take(registry.add(memory.data(), 10, {}, false))->id(), first);
  EXPECT_EQ(registry.find(first), nullptr);
  RegionId stranger = second;
  ++stranger.incarnation;
  EXPECT_EQ(registry.find(stranger), nullptr);
  EXPECT_EQ(registry.remove(stranger).code(), Code::not_found);
}

TEST_F(RegistryTest, RefusesWhatIsNoMemory) {
  const Hole hole;
  const auto code = [&](void* pointer, std::uint64_t bytes) {
    return registry.add(pointer, bytes, {}, false).status().code();
  };
  EXPECT_EQ(code(nullptr, 10), Code::invalid_argument);
  EXPECT_EQ(code(memory.data(), 0), Code::invalid_argument);
  EXPECT_EQ(code(memory.data(), ~std::uint64_t{0}), Code::invalid_argument);
  EXPECT_EQ(code(memory.data(), std::uint64_t{1} << 50), Code::invalid_argument);
  EXPECT_EQ(code(hole.data() + hole.page(), 1), Code::invalid_argument);
  EXPECT_EQ(code(hole.data() + 1, hole.page()), Code::invalid_argument);
  EXPECT_EQ(code(hole.data(), 3 * hole.page()), Code::invalid_argument);
  EXPECT_EQ(code(hole.data() + 1, hole.page() - 1), Code::ok);
  EXPECT_EQ(code(hole.data() + 2 * hole.page(), hole.page()), Code::ok);

  const Status status = registry.add(reinterpret_cast<void*>(0x10), 5, {}, false).status();
  EXPECT_NE(status.what().find("5 bytes at 0x10 "), std::string::npos) << status.to_string();
}

TEST_F(RegistryTest, SharedMemoryIsASealedMemfd) {
  const Found made = take(registry.allocate_shared(10001, {.read = true, .write = true}));
  const Region::Facts& facts = made->region().facts();
  EXPECT_EQ(facts.kind, MemoryKind::shared);
  EXPECT_EQ(facts.bytes, 10001u);
  EXPECT_EQ(facts.address, facts.allocation);
  struct stat file {};
  ASSERT_EQ(::fstat(facts.memfd->get(), &file), 0);
  EXPECT_EQ(static_cast<std::uint64_t>(file.st_size), facts.allocation_bytes);
  EXPECT_NE(::ftruncate(facts.memfd->get(), 0), 0);
  EXPECT_NE(::ftruncate(facts.memfd->get(), 1 << 30), 0);
  EXPECT_EQ(::fcntl(facts.memfd->get(), F_GETFD), FD_CLOEXEC);

  auto* here = reinterpret_cast<char*>(facts.address);
  EXPECT_EQ(here[10000], 0);
  here[10000] = 'x';
  char through_the_file = 0;
  EXPECT_EQ(::pread(facts.memfd->get(), &through_the_file, 1, 10000), 1);
  EXPECT_EQ(through_the_file, 'x');

  EXPECT_EQ(registry.allocate_shared(0, {}).status().code(), Code::invalid_argument);
  EXPECT_FALSE(registry.allocate_shared(~std::uint64_t{0}, {}).ok());
  EXPECT_FALSE(registry.allocate_shared(std::uint64_t{1} << 56, {}).ok());
  EXPECT_TRUE(registry.pin_shared().ok());  // no GPU: nothing to do
}

TEST_F(RegistryTest, APointerIntoSharedMemoryIsSharedToo) {
  Found whole = take(registry.allocate_shared(100000, {}));
  const Region::Facts all = whole->region().facts();
  auto* inside = reinterpret_cast<char*>(all.address) + 70001;
  const Found part = take(registry.add(inside, 20000, {}, false));
  const Region::Facts& facts = part->region().facts();
  EXPECT_EQ(facts.kind, MemoryKind::shared);
  EXPECT_EQ(facts.memfd, all.memfd);
  EXPECT_EQ(facts.allocation, all.allocation);
  EXPECT_EQ(facts.address - facts.allocation, 70001u);
  EXPECT_EQ(registry.add(inside, 40000, {}, false).status().code(), Code::invalid_argument);

  ASSERT_TRUE(registry.remove(whole->id()).ok());
  whole.reset();
  inside[19999] = 'y';  // the part holds the mapping
  EXPECT_GE(::fcntl(all.memfd->get(), F_GETFD), 0);
}

TEST_F(RegistryTest, SharedMemoryEndsWithItsLastHolder) {
  Found made = take(registry.allocate_shared(4096, {}));
  const int memfd = made->region().facts().memfd->get();
  const std::uint64_t address = made->region().facts().address;
  ASSERT_TRUE(registry.remove(made->id()).ok());
  EXPECT_GE(::fcntl(memfd, F_GETFD), 0);
  made.reset();
  EXPECT_LT(::fcntl(memfd, F_GETFD), 0);
  EXPECT_EQ(registry.add(reinterpret_cast<void*>(address), 1, {}, false).status().code(),
            Code::invalid_argument);
}

TEST_F(RegistryTest, NamesAreUnique) {
  const RegionId a = take(registry.add(memory.data(), 10, {}, false))->id();
  const RegionId b = take(registry.add(memory.data(), 10, {}, false))->id();
  EXPECT_TRUE(registry.set_name(a, "kv").ok());
  EXPECT_TRUE(registry.set_name(a, "kv").ok());
  const Status taken = registry.set_name(b, "kv");
  EXPECT_EQ(taken.code(), Code::invalid_argument);
  EXPECT_NE(taken.what().find("\"kv\""), std::string::npos);
  EXPECT_EQ((*registry.find_name("kv"))->id(), a);

  EXPECT_TRUE(registry.set_name(a, "cache").ok());  // "kv" is free
  EXPECT_TRUE(registry.set_name(b, "kv").ok());
  EXPECT_EQ(registry.name(a), "cache");
  EXPECT_EQ((*registry.find_name("kv"))->id(), b);

  EXPECT_TRUE(registry.set_name(b, "").ok());
  EXPECT_EQ(registry.find_name("kv").status().code(), Code::not_found);
  EXPECT_EQ(registry.find_name("").status().code(), Code::not_found);
  EXPECT_TRUE(registry.remove(a).ok());
  EXPECT_EQ(registry.find_name("cache").status().code(), Code::not_found);
  EXPECT_EQ(registry.set_name(a, "x").code(), Code::not_found);
  EXPECT_EQ(registry.set_name(b, std::string(kMaxNameBytes + 1, 'x')).code(),
            Code::invalid_argument);
}

TEST_F(RegistryTest, ANameStandsForAWholeSetOrForNone) {
  std::vector<RegionId> ids;
  for (int i = 0; i < 4; ++i) ids.push_back(take(registry.add(memory.data(), 10, {}, false))->id());
  const std::uint64_t first = *registry.publish("w", std::vector{ids[0], ids[1]});
  EXPECT_EQ(registry.find_set("w")->version, first);
  EXPECT_EQ(registry.find_set("w")->serials, (std::vector{ids[0].serial, ids[1].serial}));
  EXPECT_EQ(take(registry.find_name("w", ids[1].serial))->id(), ids[1]);
  EXPECT_EQ(registry.find_name("w", ids[2].serial).status().code(), Code::not_found);
  EXPECT_EQ(registry.find_name("w").status().code(), Code::invalid_argument);
  // Refuses a region that another name would take out of the set, and a name that another region
  // has.
  EXPECT_EQ(registry.set_name(ids[0], "x").code(), Code::invalid_argument);
  EXPECT_EQ(registry.set_name(ids[2], "w").code(), Code::invalid_argument);
  EXPECT_EQ(registry.publish("x", std::vector{ids[2], ids[0]}).status().code(),
            Code::invalid_argument);
  EXPECT_EQ(registry.name(ids[2]), "");

  EXPECT_TRUE(registry.set_name(ids[2], "two").ok());
  const std::uint64_t second = *registry.publish("w", std::vector{ids[1], ids[2], ids[1]});
  EXPECT_GT(second, first);
  EXPECT_EQ(registry.name(ids[0]), "");
  EXPECT_EQ(registry.name(ids[2]), "w");
  EXPECT_FALSE(registry.find_set("two"));  // it has moved
  EXPECT_EQ(registry.find_name("w", ids[0].serial).status().code(), Code::not_found);

  EXPECT_TRUE(registry.remove(ids[2]).ok());
  EXPECT_FALSE(registry.find_set("w"));
  EXPECT_EQ(registry.name(ids[1]), "");
  EXPECT_EQ(registry.publish("w", std::vector{ids[1], ids[2]}).status().code(), Code::not_found);
  EXPECT_GT(*registry.publish("w", std::vector{ids[1]}), second);
}

TEST_F(RegistryTest, PublishChangesNothing_WhenMemoryEnds) {
  const std::vector ids{take(registry.add(memory.data(), 10, {}, false))->id()};
  const std::string name = "a name that no small string holds", other = "another " + name;
  must(registry.publish(name, ids).status());
  test::fail_each_allocation([&] { (void)registry.publish(other, ids); },
                             [&](bool threw) {
                               EXPECT_EQ(registry.name(ids.front()), threw ? name : other);
                               EXPECT_EQ(registry.find_set(name).has_value(), threw);
                               EXPECT_EQ(registry.find_set(other).has_value(), !threw);
                             });
}

TEST_F(RegistryTest, KeepsNothingOfARegion_WhenMemoryEnds) {
  test::fail_each_allocation(
      [&] {
        if (const auto made = registry.allocate_shared(4096, {}); made.ok())
          must(registry.remove((*made)->id()));
      },
      [&](bool) {
        EXPECT_TRUE(registry.all().empty());
        EXPECT_EQ(registry.find_shared(0, 1), nullptr);
      });
}

TEST_F(RegistryTest, IsBusyWhileTransfersBorrow) {
  const Found made = take(registry.add(memory.data(), 10, {}, false));
  ASSERT_TRUE(made->acquire());
  ASSERT_TRUE(made->acquire());
  EXPECT_EQ(registry.remove(made->id()).code(), Code::busy);
  made->release();
  EXPECT_EQ(registry.remove(made->id()).code(), Code::busy);
  EXPECT_EQ(registry.find(made->id()), made);
  made->release();
  EXPECT_EQ(made->users(), 0u);
  EXPECT_TRUE(registry.remove(made->id()).ok());
  EXPECT_FALSE(made->acquire());
  EXPECT_EQ(made->users(), 0u);
}

TEST_F(RegistryTest, NoTransferBeginsAfterTheRemoval) {
  for (int round = 0; round < 200; ++round) {
    const Found made = take(registry.add(memory.data(), 10, {}, false));
    std::atomic<bool> removed{false};
    std::jthread user([&] {
      while (!removed) {
        if (!made->acquire()) continue;
        EXPECT_FALSE(removed) << "removed under a transfer";
        made->release();
      }
    });
    Status status;
    while (!(status = registry.remove(made->id())).ok()) ASSERT_EQ(status.code(), Code::busy);
    removed = true;
  }
}

TEST_F(RegistryTest, ServesManyThreads) {
  std::vector<std::jthread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        const Found made = take(i % 20 == 0 ? registry.allocate_shared(4096, {})
                                            : registry.add(memory.data(), 100, {}, false));
        EXPECT_TRUE(registry.set_name(made->id(), std::to_string(t)).ok());
        EXPECT_EQ(take(registry.find_name(std::to_string(t))), made);
        EXPECT_GE(registry.all().size(), 1u);
        EXPECT_TRUE(registry.remove(made->id()).ok());
      }
    });
  }
  threads.clear();
  EXPECT_TRUE(registry.all().empty());
}

TEST_F(RegistryTest, PinWithoutAGpuSaysWhatToDo) {
  const Status status = registry.add(memory.data(), 10, {}, true).status();
  EXPECT_EQ(status.code(), Code::unsupported);
  EXPECT_NE(status.what().find("leave `pin` away"), std::string::npos);
}

class RegistryOnDevice : public testing::Test {
 protected:
  void SetUp() override {
    auto made = cuda::Topology::create();
    if (made.status().code() == Code::unsupported)
      GTEST_SKIP() << "needs a GPU or the simulated driver: " << made.status().to_string();
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    topology = *std::move(made);
    registry.emplace(77, topology.get());
  }
  const cuda::Device& activate() {
    const auto device = topology->activate(topology->devices().front().uuid);
    EXPECT_TRUE(device.ok()) << device.status().to_string();
    return **device;
  }

  std::unique_ptr<cuda::Topology> topology;
  std::optional<Registry> registry;
  std::vector<std::byte> memory = std::vector<std::byte>(100000);
};

TEST_F(RegistryOnDevice, KnowsTheMemoryOfAGpu) {
  const cuda::Device& device = activate();
  auto scope = device.enter();
  ASSERT_TRUE(scope.ok());
  const auto buffer = cuda::DeviceBuffer::create(*scope, std::size_t{3} << 20);
  ASSERT_TRUE(buffer.ok());
  const auto at = [&](std::uint64_t offset) {
    return reinterpret_cast<void*>(buffer->address() + offset);
  };
  const std::uint64_t offset = (std::uint64_t{2} << 20) + 5;
  const Found made = take(registry->add(at(offset), 1000, {}, true));  // pin says nothing here
  const Region::Facts& facts = made->region().facts();
  EXPECT_EQ(facts.kind, MemoryKind::device);
  EXPECT_EQ(facts.gpu, device.info().uuid);
  EXPECT_NE(facts.id.buffer, 0u);
  EXPECT_EQ(facts.allocation, buffer->address());
  EXPECT_EQ(facts.address - facts.allocation, offset);
  EXPECT_TRUE(made->pinned());
  EXPECT_EQ(registry->add(at(offset), std::uint64_t{1} << 20, {}, false).status().code(),
            Code::invalid_argument);
}

TEST_F(RegistryOnDevice, RefusesManagedMemoryAndSaysWhatToDo) {
  const cuda::Device& device = activate();
  auto scope = device.enter();
  ASSERT_TRUE(scope.ok());
  cuda::CUdeviceptr managed = 0;
  ASSERT_EQ(device.driver().cuMemAllocManaged(&managed, 4096, cuda::CU_MEM_ATTACH_GLOBAL),
            cuda::CUDA_SUCCESS);
  const Status status = registry->add(reinterpret_cast<void*>(managed), 4096, {}, false).status();
  EXPECT_EQ(status.code(), Code::unsupported);
  EXPECT_NE(status.what().find("managed memory"), std::string::npos) << status.to_string();
  EXPECT_EQ(device.driver().cuMemFree(managed), cuda::CUDA_SUCCESS);
}

TEST_F(RegistryOnDevice, PinsHostMemoryOnceAndUntilTheLastRegistration) {
  Found first = take(registry->add(memory.data(), 90000, {}, true));
  EXPECT_EQ(first->region().facts().kind, MemoryKind::pinned);
  EXPECT_TRUE(first->pinned());
  Found second = take(registry->add(memory.data() + 5, 100, {}, true));
  EXPECT_EQ(second->region().facts().kind, MemoryKind::pinned);
  ASSERT_TRUE(registry->remove(first->id()).ok());
  first.reset();
  EXPECT_EQ(topology->query(memory.data())->kind, MemoryKind::pinned);
  ASSERT_TRUE(registry->remove(second->id()).ok());
  second.reset();
  EXPECT_EQ(topology->query(memory.data())->kind, MemoryKind::host);
}

TEST_F(RegistryOnDevice, PinsSharedMemoryWhenAGpuComesUp) {
  const Found before = take(registry->allocate_shared(10000, {}));
  EXPECT_FALSE(before->pinned());
  EXPECT_TRUE(registry->pin_shared().ok());
  EXPECT_FALSE(before->pinned());
  activate();
  EXPECT_TRUE(registry->pin_shared().ok());
  EXPECT_TRUE(registry->pin_shared().ok());
  EXPECT_TRUE(before->pinned());
  EXPECT_EQ(before->region().facts().kind, MemoryKind::shared);
  const Found after = take(registry->allocate_shared(10000, {}));
  EXPECT_TRUE(after->pinned());
  const Found part =
      take(registry->add(reinterpret_cast<void*>(after->region().facts().address), 10, {}, true));
  EXPECT_EQ(part->region().facts().kind, MemoryKind::shared);
  EXPECT_TRUE(part->pinned());
}

}  // namespace registry_test
}  // namespace linkspan::memory
