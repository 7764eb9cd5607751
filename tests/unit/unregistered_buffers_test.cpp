// Tests the registrations of messages' memory: which region a message takes, for how long, and that
// none is left when one is refused.
#include "engine/registration/unregistered_buffers.hpp"

#include <set>

#include "tests/support/take.hpp"
#include "tests/unit/cuda_fixture.hpp"
#include "tests/unit/stub_transport.hpp"

namespace linkspan::engine {
namespace unregistered_buffers_test {

using test::take;

/// A transport that only remembers what is published.
class Publisher final : public test::StubTransport {
 public:
  explicit Publisher(bool leaves_host) : StubTransport({.leaves_host = leaves_host}) {}

  std::string_view name() const noexcept override { return "publisher"; }
  Result<memory::PublishedKey> publish(const memory::Region& region) override {
    if (fails) return Status(Code::system, Scope::process, "no key today");
    published.insert(region.facts().id.serial);
    return StubTransport::publish(region);
  }
  Status forget(const memory::Region& region) override {
    if (busy) return {Code::busy, Scope::peer, "a peer uses it"};
    if (published.erase(region.facts().id.serial) != 0) return {};
    return {Code::not_found, Scope::request, "not published"};
  }

  bool fails = false, busy = false;
  std::set<std::uint64_t> published;  ///< The serials.
};

/// Two transports, of which one leaves the host.
struct Publishers {
  Publishers() {
    for (Publisher* each : {local, wire}) all.emplace_back(each);
  }
  Publisher* local = new Publisher(false);
  Publisher* wire = new Publisher(true);
  Transports all;  // owns them
};

class Unregistered : public ::testing::Test {
 protected:
  Result<TemporaryRegistration> acquire(const void* pointer, std::uint64_t bytes,
                                        bool peer_reads = true, bool by_wire = false) {
    return buffers_.acquire_buffer(pointer, bytes, peer_reads, by_wire);
  }
  std::size_t regions() const { return registry_.list(0).second; }
  static const memory::Region::Facts& facts(const TemporaryRegistration& temporary) {
    return temporary.registration()->region().facts();
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(8192);
  memory::Registry registry_{77, nullptr};
  Publishers transports_;
  UnregisteredBuffers buffers_{registry_, nullptr, transports_.all};
};

TEST_F(Unregistered, PrivateMemoryIsRegisteredForTheMessage) {
  for (const bool peer_reads : {true, false}) {
    auto temporary = take(acquire(memory_.data() + 100, 200, peer_reads));
    EXPECT_TRUE(temporary.one_shot());
    EXPECT_EQ(temporary.offset(), 0u);
    EXPECT_EQ(facts(temporary).address, reinterpret_cast<std::uintptr_t>(memory_.data() + 100));
    EXPECT_EQ(facts(temporary).bytes, 200u);
    EXPECT_EQ(facts(temporary).peers.read, peer_reads);
    EXPECT_FALSE(facts(temporary).peers.write);
    ASSERT_NE(temporary.keys(), nullptr);
    EXPECT_TRUE(transports_.local->published.contains(temporary.serial()));
    EXPECT_EQ(temporary.registration()->users(), 1u);
    EXPECT_EQ(temporary.release().to_string(), "ok");
    EXPECT_EQ(temporary.serial(), 0u);
    EXPECT_EQ(regions(), 0u);
    EXPECT_TRUE(transports_.local->published.empty());
    EXPECT_EQ(temporary.release().to_string(), "ok");  // nothing is left to release
  }
}

TEST_F(Unregistered, StaysRegistered_WhileAPeerUsesIt) {
  auto temporary = take(acquire(memory_.data(), 100));
  const std::uint64_t serial = temporary.serial();
  transports_.wire->busy = true;
  ASSERT_EQ(temporary.release().code(), Code::busy);
  EXPECT_EQ(temporary.serial(), serial);
  EXPECT_EQ(temporary.registration()->users(), 1u);
  EXPECT_EQ(regions(), 1u);
  transports_.wire->busy = false;
  EXPECT_EQ(temporary.release().to_string(), "ok");
  EXPECT_EQ(regions(), 0u);
}

TEST_F(Unregistered, SharedMemoryIsTheUsersRegistration) {
  const auto shared = take(registry_.allocate_shared(8192, {.read = true, .write = true}));
  const auto* at = reinterpret_cast<const std::byte*>(shared->region().facts().address);
  auto temporary = take(acquire(at + 300, 100));
  EXPECT_EQ(temporary.registration(), shared);
  EXPECT_TRUE(temporary.lies_in(*shared));
  EXPECT_FALSE(temporary.one_shot());
  EXPECT_EQ(temporary.keys(), nullptr);
  EXPECT_EQ(temporary.offset(), 300u);
  EXPECT_EQ(shared->users(), 1u);
  EXPECT_EQ(regions(), 1u);
  EXPECT_EQ(temporary.release().to_string(), "ok");
  EXPECT_EQ(shared->users(), 0u);
  EXPECT_EQ(regions(), 1u);
}

TEST_F(Unregistered, APartOfSharedMemoryIsWhatAWireReaches) {
  const auto shared = take(registry_.allocate_shared(8192, {.read = true, .write = true}));
  const auto* at = reinterpret_cast<const std::byte*>(shared->region().facts().address);
  auto temporary = take(acquire(at + 300, 100, true, true));
  EXPECT_TRUE(temporary.one_shot());
  EXPECT_NE(temporary.registration(), shared);
  EXPECT_TRUE(temporary.lies_in(*shared));
  EXPECT_EQ(temporary.offset(), 0u);
  EXPECT_EQ(facts(temporary).address, shared->region().facts().address + 300);
  EXPECT_EQ(facts(temporary).bytes, 100u);
  EXPECT_TRUE(facts(temporary).peers.read && !facts(temporary).peers.write);
  EXPECT_EQ(facts(temporary).part_of, shared->id().serial);
  EXPECT_TRUE(transports_.wire->published.contains(temporary.serial()));
  EXPECT_TRUE(transports_.local->published.empty());
  EXPECT_EQ(shared->users(), 1u);
  EXPECT_EQ(temporary.release().to_string(), "ok");
  EXPECT_EQ(shared->users(), 0u);
  EXPECT_EQ(regions(), 1u);
  EXPECT_TRUE(transports_.wire->published.empty());
}

TEST_F(Unregistered, ExclusiveMemoryStaysExclusive) {
  const Permissions exclusive{.read = true, .write = true, .exclusive = true};
  const auto owned = take(registry_.add(memory_.data(), memory_.size(), exclusive, false));
  auto sent = take(acquire(memory_.data() + 10, 50)),
       received = take(acquire(memory_.data(), 5, false));
  EXPECT_TRUE(sent.one_shot() && received.one_shot());
  EXPECT_TRUE(facts(sent).peers.exclusive && facts(received).peers.exclusive);
  EXPECT_TRUE(facts(sent).peers.read && !facts(sent).peers.write);
  EXPECT_TRUE(!facts(received).peers.read && facts(received).peers.write);
  EXPECT_EQ(sent.release().to_string(), "ok");
  EXPECT_EQ(received.release().to_string(), "ok");
  EXPECT_EQ(regions(), 1u);
}

TEST_F(Unregistered, WhatIsNoMemoryIsRefused) {
  EXPECT_EQ(acquire(nullptr, 8).status().code(), Code::invalid_argument);
  EXPECT_EQ(acquire(memory_.data(), ~std::uint64_t{0}).status().code(), Code::invalid_argument);
  EXPECT_EQ(regions(), 0u);
}

TEST_F(Unregistered, NothingIsKept_WhenATransportFails) {
  const auto shared = take(registry_.allocate_shared(8192, {.read = true, .write = true}));
  const auto* at = reinterpret_cast<const std::byte*>(shared->region().facts().address);
  transports_.wire->fails = true;
  EXPECT_EQ(acquire(memory_.data(), 100).status().code(), Code::system);
  EXPECT_EQ(acquire(at, 100, true, true).status().code(), Code::system);
  EXPECT_EQ(shared->users(), 0u);
  EXPECT_EQ(regions(), 1u);
  EXPECT_TRUE(transports_.local->published.empty());
}

/// Messages with memory of a GPU.
class UnregisteredOnDevice : public cuda::OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    registry_.emplace(77, topology.get());
    buffers_.emplace(*registry_, topology.get(), transports_.all);
  }
  void TearDown() override {
    buffers_.reset();
    registry_.reset();
  }
  static void* at(std::uint64_t address) {
    return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
  }
  Result<TemporaryRegistration> acquire(const cuda::DeviceBuffer& buffer, std::uint64_t offset,
                                        std::uint64_t bytes) {
    return buffers_->acquire_buffer(at(buffer.address() + offset), bytes, true, false);
  }
  cuda::DeviceBuffer made(std::size_t bytes) {
    return take(cuda::DeviceBuffer::create(*scope, bytes));
  }
  std::size_t regions() const { return registry_->list(0).second; }

  Publishers transports_;
  std::optional<memory::Registry> registry_;
  std::optional<UnregisteredBuffers> buffers_;
};

TEST_F(UnregisteredOnDevice, TheWholeAllocationIsRegisteredOnce) {
  const auto buffer = made(1u << 20);
  auto first = take(acquire(buffer, 4096, 100));
  EXPECT_FALSE(first.one_shot());
  EXPECT_EQ(first.kind(), MemoryKind::device);
  EXPECT_GE(first.registration()->region().bytes(), std::uint64_t{1} << 20);
  auto second = take(acquire(buffer, 100'000, 100));
  EXPECT_EQ(second.registration(), first.registration());
  EXPECT_EQ(second.keys(), first.keys());
  EXPECT_EQ(second.offset() - first.offset(), 100'000u - 4096u);
  const std::uint64_t serial = first.serial();
  for (TemporaryRegistration* each : {&first, &second}) EXPECT_TRUE(each->release().ok());
  EXPECT_EQ(take(acquire(buffer, 0, 1)).serial(), serial) << "it is kept for later messages";
  EXPECT_EQ(regions(), 1u);
}

TEST_F(UnregisteredOnDevice, BytesBeyondTheAllocationAreRefused) {
  const auto buffer = made(1u << 20);
  EXPECT_EQ(acquire(buffer, 0, std::uint64_t{1} << 40).status().code(), Code::invalid_argument);
  auto inside = take(acquire(buffer, 0, 1));
  EXPECT_EQ(acquire(buffer, 0, std::uint64_t{1} << 40).status().code(), Code::invalid_argument);
  EXPECT_TRUE(inside.release().ok());
  EXPECT_EQ(regions(), 1u);
}

TEST_F(UnregisteredOnDevice, TheLeastRecentlyUsedMakesRoom) {
  constexpr std::size_t kMax = UnregisteredBuffers::kMaxCached;
  std::vector<cuda::DeviceBuffer> buffers;
  while (buffers.size() < kMax + 2) buffers.push_back(made(1u << 20));
  const auto use = [&](std::size_t i) {
    auto temporary = take(acquire(buffers[i], 0, 64));
    const std::uint64_t serial = temporary.serial();
    EXPECT_TRUE(temporary.release().ok());
    return serial;
  };
  std::vector<std::uint64_t> serials;
  for (std::size_t i = 0; i < kMax; ++i) serials.push_back(use(i));
  EXPECT_EQ(use(0), serials[0]);
  EXPECT_EQ(regions(), kMax);
  transports_.local->busy = true;  // a peer does not unmap what makes room
  (void)use(kMax);
  EXPECT_EQ(regions(), kMax + 1);
  EXPECT_EQ(use(0), serials[0]);
  transports_.local->busy = false;
  (void)use(kMax + 1);
  EXPECT_EQ(regions(), kMax);
  EXPECT_FALSE(transports_.local->published.contains(serials[1]));
  EXPECT_NE(use(1), serials[1]) << "it was registered anew";
  EXPECT_EQ(use(0), serials[0]);
}

TEST_F(UnregisteredOnDevice, OneInUseMakesNoRoom) {
  constexpr std::size_t kMax = UnregisteredBuffers::kMaxCached;
  std::vector<cuda::DeviceBuffer> buffers;
  while (buffers.size() < kMax + 1) buffers.push_back(made(1u << 20));
  std::vector<TemporaryRegistration> used;
  for (const auto& each : buffers) used.push_back(take(acquire(each, 0, 64)));
  for (std::size_t i = 0; i < used.size(); ++i) {
    auto again = take(acquire(buffers[i], 0, 64));
    EXPECT_EQ(again.serial(), used[i].serial()) << "of buffer " << i;
    EXPECT_TRUE(again.release().ok());
    EXPECT_TRUE(used[i].release().ok());
  }
  EXPECT_EQ(regions(), kMax + 1);
}

}  // namespace unregistered_buffers_test
}  // namespace linkspan::engine
