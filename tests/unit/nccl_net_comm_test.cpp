// Tests comms of every version with host memory. nccl_net_gpu_test.cpp tests GPU memory,
// nccl_net_rules_test.cpp what the test plugin refuses.
#include "transport/nccl_net/comm.hpp"

#include "tests/unit/nccl_net_fixture.hpp"

namespace linkspan::transport::nccl_net {
namespace nccl_net_comm_test {

constexpr int kTag = 7;

class NcclNetComms : public NcclNetVersions {
 protected:
  static std::size_t limit(const Pair& pair) {
    return static_cast<std::size_t>(pair.send->plugin().max_requests(0));
  }
};
INSTANTIATE_TEST_SUITE_P(Every, NcclNetComms, ::testing::Range(5, 13), name_of_version);

/// Memory that is registered on one side.
struct Registered {
  Registered(Comm& comm, std::size_t bytes, std::uint64_t seed)
      : memory(pattern_of(bytes, seed)),
        handle(take(comm.add_memory(memory.data(), memory.size(), abi::kHost))) {}
  std::byte* at(std::size_t offset) { return memory.data() + offset; }

  Bytes memory;
  std::unique_ptr<Comm::CommRegistration> handle;
};

/// Moves messages of `sizes`, with gaps between them in memory, as many at once as there is room
/// for.
void move_messages(const Pair& pair, const std::vector<std::size_t>& sizes, std::uint64_t seed) {
  constexpr std::size_t kGap = 3;
  std::size_t total = kGap;
  for (const std::size_t size : sizes) total += size + kGap;
  Registered from(*pair.send, total, seed), to(*pair.receive, total, seed + 1);
  std::vector<test::Expected> expected;
  std::size_t offset = kGap;
  for (const std::size_t size : sizes) {
    expected.push_back({.offset = offset, .seed = seed, .from = offset, .bytes = size});
    offset += size + kGap;
  }
  std::size_t received = 0, sent = 0, arrived = 0, gone = 0;
  until([&] {
    if (received != sizes.size()) {
      const auto& m = expected[received];
      const Status s = pair.receive->receive(to.at(m.offset), m.bytes, kTag, *to.handle, received);
      if (s.code() != Code::no_resource) must(s), ++received;
    }
    if (sent != sizes.size()) {
      const auto& m = expected[sent];
      const Status s = pair.send->send(from.at(m.offset), m.bytes, kTag, *from.handle, sent);
      if (s.code() != Code::no_resource) must(s), ++sent;
    }
    if (const std::optional<Done> over = take(pair.send->test())) {
      EXPECT_EQ(over->cookie, gone++);
    }
    if (const std::optional<Done> over = take(pair.receive->test())) {
      EXPECT_EQ(over->cookie, arrived);
      EXPECT_EQ(over->bytes, sizes[arrived++]);
      must(pair.receive->consumed(*over));
    }
    return arrived == sizes.size() && gone == sizes.size();
  });
  EXPECT_EQ(test::first_difference(to.memory, seed + 1, 0, expected), "");
  EXPECT_EQ(pair.send->in_flight(), 0u);
  EXPECT_EQ(pair.receive->in_flight(), 0u);
}

TEST_P(NcclNetComms, MoveBytesOfEverySize) {
  const auto plugin = NcclNetVersions::plugin();
  const Pair pair = connect(plugin);
  const std::size_t most = std::min(plugin->devices()[0].max_bytes, std::size_t{4} << 20);
  move_messages(pair, {0, 1, 7, 4096, 4097, 70001, most, 0, 0, 1, most - 1}, 11);
  move_messages(pair, std::vector<std::size_t>(100, 12345), 13);
  EXPECT_FALSE(said("WARNING")) << Lines::all().text();
}

TEST_P(NcclNetComms, MoveBothWaysAndOverSeveralConnectionsOfOneListener) {
  const auto plugin = NcclNetVersions::plugin();
  const auto listener = take(Listener::open(plugin, 0));
  std::vector<Pair> pairs;
  for (int i = 0; i < 3; ++i) pairs.push_back(connect(*listener, plugin));
  for (std::uint64_t i = 0; i < pairs.size(); ++i) move_messages(pairs[i], {1, 333, 70001}, i);
  const Pair back = connect(plugin);
  move_messages(back, {5}, 9);
}

TEST_P(NcclNetComms, TakeAsManyRequestsAsTheVersionAllows) {
  const Pair pair = connect(NcclNetVersions::plugin());
  Registered from(*pair.send, 4096, 1), to(*pair.receive, 4096, 2);
  for (std::uint64_t i = 0; i < limit(pair); ++i)
    must(pair.receive->receive(to.at(i * 8), 8, kTag, *to.handle, i));
  EXPECT_EQ(pair.receive->receive(to.at(0), 8, kTag, *to.handle, 0).code(), Code::no_resource);
  for (std::uint64_t i = 0; i < limit(pair); ++i)
    must(pair.send->send(from.at(i * 8), 8, kTag, *from.handle, i));
  EXPECT_EQ(pair.send->send(from.at(0), 8, kTag, *from.handle, 0).code(), Code::no_resource);
  std::vector<Done> over;
  for (std::uint64_t i = 0; i < limit(pair); ++i) {
    EXPECT_EQ(done(*pair.send).cookie, i);
    over.push_back(done(*pair.receive));
    EXPECT_EQ(over.back().cookie, i);
  }
  // A receive that is done but not consumed still takes room.
  const Status status = pair.receive->receive(to.at(0), 8, kTag, *to.handle, 0);
  EXPECT_EQ(status.code(), GetParam() == 7 ? Code::no_resource : Code::ok);
  for (const Done& each : over) must(pair.receive->consumed(each));
  EXPECT_FALSE(said("WARNING")) << Lines::all().text();
}

TEST_P(NcclNetComms, RefuseMessagesThatAreTooLarge) {
  const Pair pair = connect(NcclNetVersions::plugin());
  Registered from(*pair.send, 16, 1), to(*pair.receive, 16, 2);
  const std::size_t large = pair.send->properties().max_bytes + 1;
  EXPECT_EQ(pair.send->send(from.at(0), large, kTag, *from.handle, 0).code(),
            Code::invalid_argument);
  EXPECT_EQ(pair.receive->receive(to.at(0), large, kTag, *to.handle, 0).code(),
            Code::invalid_argument);
  EXPECT_EQ(pair.send->in_flight() + pair.receive->in_flight(), 0u);
}

TEST_P(NcclNetComms, TryAgainWhereThePluginHasNoRequestOrNoComm) {
  set("NULL_PERCENT", "70");
  set("NULL_COMMS", "5");
  set("DELAY_US", "200");
  set("SEED", std::to_string(GetParam()));
  const Pair pair = connect(NcclNetVersions::plugin());
  move_messages(pair, std::vector<std::size_t>(60, 999), 17);
}

TEST_P(NcclNetComms, TellAnErrorByTheFunctionAndItsResult) {
  const auto plugin = NcclNetVersions::plugin();
  const auto expect = [](const Status& status, Code code, const std::string& text) {
    EXPECT_EQ(status.code(), code) << status.to_string();
    EXPECT_EQ(status.scope(), Scope::transport);
    EXPECT_NE(status.what().find(text), std::string::npos) << status.to_string();
  };
  set("FAIL", "listen:0:2");
  expect(Listener::open(plugin, 0).status(), Code::system, "listen answered ncclSystemError (2)");
  set("FAIL", "connect:1:6");
  const auto listener = take(Listener::open(plugin, 0));
  expect(take(PendingConnect::open(plugin, 0, listener->handle()))->connect().status(),
         Code::disconnected, "connect answered ncclRemoteError (6)");
  set("FAIL", "accept:1:3");
  expect(take(Listener::open(plugin, 0))->accept().status(), Code::internal,
         "accept answered ncclInternalError (3)");
  set("FAIL", "isend:2:5");
  {
    const Pair pair = connect(plugin);
    Registered from(*pair.send, 64, 1);
    must(pair.send->send(from.at(0), 8, kTag, *from.handle, 0));
    expect(pair.send->send(from.at(8), 8, kTag, *from.handle, 1), Code::invalid_argument,
           "isend answered ncclInvalidUsage (5)");
    EXPECT_EQ(pair.send->in_flight(), 1u);
    EXPECT_EQ(done(*pair.send).cookie, 0u);
  }
  set("FAIL", "irecv:1:1");
  {
    const Pair pair = connect(plugin);
    Registered to(*pair.receive, 64, 1);
    expect(pair.receive->receive(to.at(0), 8, kTag, *to.handle, 0), Code::cuda,
           "irecv answered ncclUnhandledCudaError (1)");
    EXPECT_EQ(pair.receive->in_flight(), 0u);
  }
  set("FAIL", "test:1:7");
  {
    const Pair pair = connect(plugin);
    Registered to(*pair.receive, 64, 1);
    must(pair.receive->receive(to.at(0), 8, kTag, *to.handle, 0));
    expect(pair.receive->test().status(), Code::internal, "test answered ncclInProgress (7)");
  }
  set("FAIL", "regMr:1:4");
  const Pair pair = connect(plugin);
  Bytes memory(64);
  expect(pair.send->add_memory(memory.data(), 64, abi::kHost).status(), Code::invalid_argument,
         "regMr answered ncclInvalidArgument (4)");
  EXPECT_TRUE(pair.send->add_memory(memory.data(), 64, abi::kHost).ok());
}

TEST_P(NcclNetComms, ADeadSenderEndsItsReceiver) {
  Pair pair = connect(NcclNetVersions::plugin());
  Registered to(*pair.receive, 4096, 2);
  must(pair.receive->receive(to.at(0), 100, kTag, *to.handle, 0));
  EXPECT_FALSE(take(pair.receive->test()).has_value());
  pair.send.reset();
  const Status status = end_of(*pair.receive);
  EXPECT_EQ(status.code(), Code::disconnected) << status.to_string();
  EXPECT_EQ(pair.receive->receive(to.at(0), 100, kTag, *to.handle, 0).code(), Code::disconnected);
}

TEST_P(NcclNetComms, ADeadReceiverEndsItsSender) {
  Pair pair = connect(NcclNetVersions::plugin());
  Registered from(*pair.send, 1 << 20, 1);
  pair.receive.reset();
  Status status;
  until([&] {
    status = pair.send->send(from.at(0), 1 << 20, kTag, *from.handle, 0);
    if (status.ok() || status.code() == Code::no_resource) status = pair.send->test().status();
    return !status.ok();
  });
  EXPECT_EQ(status.code(), Code::disconnected) << status.to_string();
}

TEST_P(NcclNetComms, WhatWasWholeBeforeADeathArrives) {
  set("DIE_AFTER", "3");
  const Pair pair = connect(NcclNetVersions::plugin());
  Registered from(*pair.send, 4096, 1), to(*pair.receive, 4096, 2);
  for (std::uint64_t i = 0; i < 4; ++i)
    must(pair.receive->receive(to.at(i * 100), 100, kTag, *to.handle, i));
  for (std::uint64_t i = 0; i < 3; ++i)
    must(pair.send->send(from.at(i * 100), 100, kTag, *from.handle, i));
  EXPECT_EQ(pair.send->send(from.at(0), 100, kTag, *from.handle, 3).code(), Code::disconnected);
  for (std::uint64_t i = 0; i < 3; ++i) EXPECT_EQ(done(*pair.receive).cookie, i);
  const Status status = end_of(*pair.receive);
  EXPECT_EQ(status.code(), Code::disconnected) << status.to_string();
  EXPECT_EQ(test::first_difference(to.memory, 2, 0,
                                   std::vector<test::Expected>{{.seed = 1, .bytes = 300}}),
            "");
}

TEST_P(NcclNetComms, ASendLargerThanItsReceiveIsAnError) {
  const Pair pair = connect(NcclNetVersions::plugin());
  Registered from(*pair.send, 4096, 1), to(*pair.receive, 4096, 2);
  must(pair.receive->receive(to.at(0), 99, kTag, *to.handle, 0));
  must(pair.send->send(from.at(0), 100, kTag, *from.handle, 0));
  const Status status = end_of(*pair.receive);
  EXPECT_EQ(status.code(), Code::invalid_argument) << status.to_string();
  EXPECT_TRUE(said("a send of 100 bytes meets a receive of 99"));
  EXPECT_EQ(test::first_difference(to.memory, 2, 0, {}), "") << "written all the same";
}

TEST_F(NcclNet, VersionsUnderstandEachOther) {
  const auto old = take(load(5)), young = take(load(12));
  const auto listener = take(Listener::open(young, 0));
  const Pair pair = connect(*listener, old);
  move_messages(pair, {1, 70001}, 3);
}

TEST_F(NcclNet, ACorruptByteIsOne) {
  set("CORRUPT", "2");
  const Pair pair = connect(take(load(8)));
  Registered from(*pair.send, 4096, 1), to(*pair.receive, 4096, 2);
  for (std::uint64_t i = 0; i < 3; ++i) {
    must(pair.receive->receive(to.at(i * 100), 100, kTag, *to.handle, i));
    must(pair.send->send(from.at(i * 100), 100, kTag, *from.handle, i));
    (void)done(*pair.receive);
  }
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < 300; ++i) wrong += from.memory[i] != to.memory[i] ? 1u : 0u;
  EXPECT_EQ(wrong, 1u);
}

TEST_F(NcclNet, DevicesAndHandlesThatAreNoneAreRefused) {
  const auto plugin = take(load(8));
  for (const int device : {-1, 1})
    EXPECT_EQ(Listener::open(plugin, device).status().code(), Code::invalid_argument);
  EXPECT_EQ(PendingConnect::open(plugin, 1, Handle()).status().code(), Code::invalid_argument);
  EXPECT_EQ(PendingConnect::open(plugin, 0, Bytes(64)).status().code(), Code::invalid_argument);
  EXPECT_EQ(take(PendingConnect::open(plugin, 0, Handle()))->connect().status().code(),
            Code::invalid_argument);
  Handle gone{};
  gone = take(Listener::open(plugin, 0))->handle();
  const auto pending_connect = take(PendingConnect::open(plugin, 0, gone));
  Status status;
  until([&] { return !(status = pending_connect->connect().status()).ok(); });
  EXPECT_EQ(status.code(), Code::disconnected) << status.to_string();
  const Pair pair = connect(plugin);
  Bytes memory(64);
  EXPECT_EQ(pair.send->add_memory(memory.data(), 64, abi::kDmaBuf).status().code(),
            Code::unsupported);
}

}  // namespace nccl_net_comm_test
}  // namespace linkspan::transport::nccl_net
