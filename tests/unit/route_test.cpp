#include "transport/local/route.hpp"

#include <gtest/gtest.h>

namespace linkspan::transport::local {
namespace route_test {

using enum MemoryKind;
using Where = Route::Where;
using copy::Method;

RouteFacts facts(MemoryKind ours, MemoryKind theirs, Mapped mapped) {
  const auto dma = [](MemoryKind kind) { return kind != host; };
  RouteFacts f;
  f.local = ours;
  f.remote = theirs;
  f.local_dma = dma(ours);
  f.remote_dma = mapped != Mapped::nothing && dma(theirs);
  f.mapped = mapped;
  f.why_not_mapped = "private";
  f.cross_process = theirs != device;
  f.peer_can_map = ours == device || ours == shared;
  if (f.peer_can_map) f.peer_mapped = ours == device ? Mapped::cuda_ipc : Mapped::memfd;
  f.kernel = true;
  if (ours == device && theirs == device) f.link = copy::Link::peer;
  f.shape = {.blocks = 1, .bytes = 1u << 20};
  return f;
}

struct Row {
  MemoryKind ours, theirs;
  Mapped mapped;
  Where where;
  Method method;
};

TEST(Route, EachPairOfKindsBetweenTwoProcesses) {
  const Row rows[] = {
      {device, device, Mapped::cuda_ipc, Where::here, Method::copy_engine},
      {pinned, device, Mapped::cuda_ipc, Where::here, Method::copy_engine},
      {host, device, Mapped::cuda_ipc, Where::here, Method::pageable},
      {shared, device, Mapped::cuda_ipc, Where::here, Method::copy_engine},
      {device, pinned, Mapped::nothing, Where::peer, Method::copy_engine},
      {device, host, Mapped::nothing, Where::peer, Method::pageable},
      {device, shared, Mapped::memfd, Where::here, Method::copy_engine},
      {pinned, host, Mapped::nothing, Where::here, Method::cross_process},
      {host, host, Mapped::nothing, Where::here, Method::cross_process},
      {host, shared, Mapped::memfd, Where::here, Method::cpu_threads},
      {shared, host, Mapped::nothing, Where::here, Method::cross_process},
  };
  for (const Row& row : rows) {
    const Route way = route(facts(row.ours, row.theirs, row.mapped));
    EXPECT_EQ(way.where, row.where) << name_of(row.ours) << " " << name_of(row.theirs);
    EXPECT_EQ(way.method, row.method) << name_of(row.ours) << " " << name_of(row.theirs);
  }
}

TEST(Route, WhatIsSmallGoesThroughAPinnedSlotAndWakesNoPeer) {
  for (const MemoryKind theirs : {host, pinned}) {
    RouteFacts f = facts(device, theirs, Mapped::nothing);
    f.shape = {.blocks = 1, .bytes = 64u << 10};
    EXPECT_EQ(route(f).where, Where::peer) << "without slots";
    f.slots = true;
    EXPECT_EQ(route(f).where, Where::here);
    EXPECT_TRUE(route(f).through_slot);
    EXPECT_EQ(path_of(f, route(f)), "kernel+copy_engine");
    EXPECT_GT(describe(f, route(f)).expected_gbps, 0);
    ++f.shape.bytes;
    EXPECT_EQ(route(f).where, Where::peer) << "too large";
    f.shape = {.blocks = 65, .bytes = 65};
    EXPECT_EQ(route(f).where, Where::peer) << "too many blocks";
    f.shape = {.blocks = 64, .bytes = 64};
    EXPECT_TRUE(route(f).through_slot);
    f.cross_process = false;
    EXPECT_EQ(route(f).where, Where::peer) << "the kernel does not copy";
  }
}

TEST(Route, ManySmallBlocksGoByTheKernelWhereItIsLoaded) {
  RouteFacts f = facts(device, device, Mapped::cuda_ipc);
  f.shape = {.blocks = 4096, .bytes = 4096u * 4096u};
  EXPECT_EQ(route(f).method, Method::sm_kernel);
  f.kernel = false;
  EXPECT_EQ(route(f).method, Method::copy_engine);
}

TEST(Route, SharedMemoryThatIsNotPinnedYetIsPageableForAGpu) {
  RouteFacts f = facts(device, shared, Mapped::memfd);
  f.remote_dma = false;
  EXPECT_EQ(route(f).method, Method::pageable);
}

TEST(Route, SaysHowManyLinksALargeCopyToAGpuTakesOrWhyOne) {
  RouteFacts f = facts(pinned, device, Mapped::cuda_ipc);
  f.to_gpu = true;
  f.why_one_link = "nobody lends one";
  EXPECT_TRUE(describe(f, route(f)).refused.empty()) << "too small to ask";
  f.shape = {.blocks = 2, .bytes = 2 * copy::kMinRelayBytes};
  const Explanation one = describe(f, route(f));
  ASSERT_EQ(one.refused.size(), 1u);
  EXPECT_EQ(one.refused[0].reason, "nobody lends one");

  f.links = 3;
  const Explanation three = describe(f, route(f));
  EXPECT_TRUE(three.refused.empty());
  EXPECT_EQ(three.path, one.path);
  EXPECT_NE(three.reason.find("over 3 PCIe links, 2 of them"), std::string::npos) << three.reason;
  EXPECT_GT(three.expected_gbps, 1.5 * one.expected_gbps);

  RouteFacts small = f, back = f;
  small.shape.bytes -= 2;
  back.to_gpu = false;
  for (const RouteFacts& other : {small, back}) {
    const Explanation why = describe(other, route(other));
    EXPECT_EQ(why.expected_gbps < 60, true) << why.expected_gbps;
    ASSERT_EQ(why.refused.size(), 1u);
    EXPECT_NE(why.refused[0].reason.find("16 MiB or more"), std::string::npos);
  }
}

TEST(Route, AsksThePeerForItsPrivateMemory_WhereTheKernelMayNotCopy) {
  RouteFacts f = facts(shared, host, Mapped::nothing);
  f.cross_process = false;
  const Route way = route(f);
  EXPECT_EQ(way.where, Where::peer);
  EXPECT_EQ(way.method, Method::cpu_threads);
}

TEST(Route, WithoutAnyWayItIsNowhereAndSaysWhy) {
  RouteFacts f = facts(host, host, Mapped::nothing);
  f.cross_process = false;
  f.why_no_cross_process = "another pid namespace";
  f.why_peer_cannot = "ours is private";
  const Route way = route(f);
  EXPECT_EQ(way.where, Where::nowhere);
  const Explanation words = describe(f, way);
  EXPECT_TRUE(words.path.empty());
  ASSERT_EQ(words.refused.size(), 3u);
  EXPECT_EQ(words.refused[0].reason, "private");
  EXPECT_EQ(words.refused[1].reason, "another pid namespace");
  EXPECT_EQ(words.refused[2].reason, "ours is private");
}

TEST(Route, WhoExecutesForThePeerDoesNotAskItBack) {
  RouteFacts f = facts(device, pinned, Mapped::nothing);
  f.may_ask_peer = false;
  f.bounce = true;
  EXPECT_EQ(route(f).where, Where::nowhere);
}

RouteFacts bounced(MemoryKind ours, MemoryKind theirs) {
  RouteFacts f = facts(ours, theirs, Mapped::nothing);
  f.why_no_cross_process = "not permitted";
  f.why_peer_cannot = "it is not exported";
  f.cross_process = f.peer_can_map = false;
  f.bounce = f.own_kernel = true;
  f.bounce_on_gpu = ours == device && theirs == device;
  return f;
}

TEST(Route, BouncesWhereNothingIsMapped) {
  struct Hops {
    MemoryKind ours, theirs;
    Method near, far;
  };
  for (const Hops& row : {Hops{host, host, Method::cpu_threads, Method::cpu_threads},
                          Hops{device, host, Method::copy_engine, Method::cpu_threads},
                          Hops{pinned, device, Method::cpu_threads, Method::copy_engine},
                          Hops{device, device, Method::copy_engine, Method::copy_engine}}) {
    const Route way = route(bounced(row.ours, row.theirs));
    EXPECT_EQ(way.where, Where::both) << name_of(row.ours) << " " << name_of(row.theirs);
    EXPECT_EQ(way.method, row.near) << name_of(row.ours) << " " << name_of(row.theirs);
    EXPECT_EQ(way.far_method, row.far) << name_of(row.ours) << " " << name_of(row.theirs);
  }
  RouteFacts f = bounced(device, device);
  EXPECT_EQ(route(f).near_link, copy::Link::same_gpu);
  EXPECT_EQ(route(f).far_link, copy::Link::peer);
  f.bounce_on_gpu = false;
  EXPECT_EQ(route(f).near_link, copy::Link::host);
  EXPECT_EQ(route(f).far_link, copy::Link::host);
  f.shape = {.blocks = 4096, .bytes = 4096u * 4096u};
  EXPECT_EQ(route(f).method, Method::sm_kernel);
  f.peer_can_map = true;
  EXPECT_EQ(route(f).where, Where::peer);
}

TEST(Route, DescribesABounce) {
  RouteFacts f = bounced(device, device);
  f.shape.bytes = 1u << 30;
  const Explanation words = describe(f, route(f));
  EXPECT_EQ(words.path, "bounce+copy_engine");
  EXPECT_EQ(words.executor, "both");
  EXPECT_GT(words.expected_gbps, 100);
  EXPECT_LT(words.expected_gbps, 397);  // a hop over NVLink alone
  ASSERT_EQ(words.refused.size(), 3u);
  EXPECT_EQ(words.refused[0].reason, "private");
  EXPECT_EQ(words.refused[2].reason, "it is not exported");
  f.bounce_on_gpu = false;
  f.why_no_gpu_bounce = "the peer opens no handle";
  const Explanation slower = describe(f, route(f));
  EXPECT_LT(slower.expected_gbps, 56);
  ASSERT_EQ(slower.refused.size(), 4u);
  EXPECT_EQ(slower.refused[3].reason, "the peer opens no handle");
  f.shape = {.blocks = 0, .bytes = 0};
  EXPECT_EQ(describe(f, route(f)).expected_gbps, 0);
}

TEST(Route, DescribesWhatItChose) {
  const RouteFacts f = facts(device, pinned, Mapped::nothing);
  const Explanation words = describe(f, route(f));
  EXPECT_EQ(words.path, "cuda_ipc+copy_engine");
  EXPECT_EQ(words.executor, "peer");
  EXPECT_GT(words.expected_gbps, 10);
  ASSERT_EQ(words.refused.size(), 1u);
  EXPECT_EQ(words.refused[0].path, "memfd");
}

TEST(Route, SaysThatPageableMemoryIsStagedAndByHowMany) {
  RouteFacts f = facts(host, device, Mapped::cuda_ipc);
  f.shape = {.blocks = 1, .bytes = std::uint64_t{1} << 30};
  for (const auto& [threads, gbps] :
       {std::pair(2u, 17.), std::pair(4u, 29.), std::pair(8u, 46.6)}) {
    f.threads = threads;
    const Explanation words = describe(f, route(f));
    EXPECT_EQ(words.path, "cuda_ipc+pageable");
    EXPECT_NE(words.reason.find(std::to_string(threads) + " CPU threads"), std::string::npos);
    EXPECT_NE(words.reason.find("pinned staging memory"), std::string::npos) << words.reason;
    EXPECT_NEAR(words.expected_gbps, gbps, gbps / 10);
  }
  f = facts(device, host, Mapped::nothing);
  EXPECT_NE(describe(f, route(f)).reason.find("pinned staging memory"), std::string::npos);
}

TEST(Route, SaysThatTwoProcessesOnOneGpuAreTimeSliced) {
  RouteFacts f = facts(device, device, Mapped::cuda_ipc);
  const auto says_so = [&f] {
    return describe(f, route(f)).reason.find("time-sliced") != std::string::npos;
  };
  EXPECT_FALSE(says_so());
  f.link = copy::Link::same_gpu;
  EXPECT_TRUE(says_so());
  f.mapped = Mapped::same_process;
  EXPECT_FALSE(says_so());
}

}  // namespace route_test
}  // namespace linkspan::transport::local
