// Tests how a LocalTransport bounds what it imports, and drops it.
#include <fcntl.h>

#include <thread>

#include "base/sealed_memory.hpp"
#include "tests/support/local_endpoint.hpp"
#include "tests/support/no_memory.hpp"

namespace linkspan::transport::local {
namespace local_endpoint_test {

TEST(LocalImports, AreBoundedForEachPeerAndRoomComesBack) {
  Half us{kUs, 2}, peer{kPeer}, other{kPeer + 1};
  std::vector<std::byte> memory(kBytes);
  const auto import = [&](Half& of) {
    of.publish(memory, {.read = true});
    return us.transport->import_key({of.key.bytes, of.fds, 0, true}, base::Deadline::in(10s));
  };
  auto first = import(peer), second = import(peer), third = import(peer);
  EXPECT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(third.status().code(), Code::busy);
  EXPECT_NE(third.status().what().find("2 regions"), std::string::npos);
  EXPECT_TRUE(import(other).ok());
  *first = nullptr;
  const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
  while (!(third = import(peer)).ok() && !limit.passed()) {  // it is closed aside
  }
  EXPECT_TRUE(third.ok()) << third.status().to_string();
}

/// However many Engines, hence incarnations, it opens.
TEST(LocalImports, AreBoundedForEachProcess) {
  Half us{kUs, 2}, first{kPeer}, second{kPeer + 1};
  std::vector<std::byte> memory(kBytes);
  const auto import = [&](Half& of, std::int64_t pid) {
    of.publish(memory, {.read = true});
    return us.transport->import_key({of.key.bytes, of.fds, 0, true, pid}, base::Deadline::in(10s));
  };
  const auto one = import(first, 4711), two = import(second, 4711);
  EXPECT_TRUE(one.ok() && two.ok());
  EXPECT_EQ(import(second, 4711).status().code(), Code::busy);
  EXPECT_TRUE(import(second, 4712).ok());
}

/// A memfd may claim all addresses and have no page.
TEST(LocalImports, OfSparseMemoryAreBounded) {
  Half us{kUs}, peer{kPeer};
  auto shared = peer.registry.allocate_shared(kBytes, {.read = true});
  ASSERT_TRUE(shared.ok());
  auto published = peer.transport->publish((*shared)->region());
  ASSERT_TRUE(published.ok());
  LocalKey key = *decode_key(published->bytes);
  key.process = {};  // another one's
  key.bytes = std::uint64_t{100} << 40;
  auto fds = *memory::fds_for_peer(*published);
  fds[1] = *base::make_memfd("sparse", key.bytes);
  ASSERT_EQ(::fcntl(fds[1].get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  const auto soon = base::Deadline::after(base::Clock::steady(), 10s);
  const auto imported = us.transport->import_memory({encode(key), fds, 0, false, 4711}, soon);
  ASSERT_TRUE(imported.ok()) << imported.status().to_string();
  EXPECT_EQ((*imported)->mapped(), Mapped::nothing);
  EXPECT_NE((*imported)->why_not_mapped().find("bytes of this peer's process"), std::string::npos)
      << (*imported)->why_not_mapped();
}

/// A GPU would get an address that no process has pinned.
TEST(LocalImports, MemoryThatIsMappedIsNotPinnedBecauseItsOwnerSaysSo) {
  Half us{kUs};
  auto shared = us.registry.allocate_shared(kBytes, {.read = true, .write = true});
  ASSERT_TRUE(shared.ok()) << shared.status().to_string();
  auto published = us.transport->publish((*shared)->region());
  ASSERT_TRUE(published.ok()) << published.status().to_string();
  LocalKey key = *decode_key(published->bytes);
  ASSERT_TRUE(key.handle.memfd);
  for (const MemoryKind kind : {MemoryKind::pinned, MemoryKind::host, MemoryKind::device}) {
    key.kind = kind;
    EXPECT_EQ(decode_key(encode(key)).status().code(), Code::corrupt) << name_of(kind);
  }
}

/// Neither the import, nor what its end needs, nor the thread that closes it may find memory.
TEST(LocalImports, AreGoneOnceTheyAreDropped_WhenAllocationsFail) {
  Half us{kUs}, peer{kPeer};
  std::vector<std::byte> memory(kBytes);
  peer.publish(memory, {.read = true});
  const memory::RegionId id = decode_key(peer.key.bytes)->id;
  const auto import = [&] {
    return us.transport->import_key({peer.key.bytes, peer.fds, 0, true}, base::Deadline::in(10s));
  };
  const auto expect_gone = [&] {
    for (const auto limit = base::Deadline::in(10s); us.transport->maps(id) && !limit.passed();)
      std::this_thread::yield();
    EXPECT_FALSE(us.transport->maps(id));
  };
  test::fail_each_allocation([&] { (void)import().ok(); }, [&](bool) { expect_gone(); });
  auto mapping = import();
  test::fail_each_allocation([&] { (void)us.transport->unmap(id); },  // it may run here
                             [&](bool threw) {
                               if (threw) return;
                               expect_gone();
                               mapping = import();
                             });
}

}  // namespace local_endpoint_test
}  // namespace linkspan::transport::local
