// Tests what the test plugin refuses, by calls that bypass our own checks, so that a rule that our
// comms break would show.
#include <dlfcn.h>

#include <atomic>

#include "tests/support/nccl_net_plugin/abi.hpp"
#include "tests/unit/nccl_net_fixture.hpp"
#define NCCL_NET_VERSION 10
#include "tests/support/nccl_net_plugin/versioned_abi.hpp"
#undef NCCL_NET_VERSION
#define NCCL_NET_VERSION 11
#include "tests/support/nccl_net_plugin/versioned_abi.hpp"
#undef NCCL_NET_VERSION

namespace linkspan::transport::nccl_net {
namespace nccl_net_rules_test {

constexpr int kTag = 1;

class NcclNetRules : public NcclNet {
 protected:
  void start(int version) {
    stop();
    plugin = take(load(version));
    pair = connect(plugin);
    from = pattern_of(8192, 1);
    to = pattern_of(8192, 2);
    source = take(pair.send->add_memory(from.data(), from.size(), abi::kHost));
    target = take(pair.receive->add_memory(to.data(), to.size(), abi::kHost));
  }
  void stop() {
    source.reset();
    target.reset();
    pair = {};
  }
  void TearDown() override { stop(); }
  Net& net() const { return plugin->net(); }
  void* send(std::size_t bytes = 16) {
    void* request = nullptr;
    EXPECT_EQ(net().send(pair.send->raw(), from.data(), bytes, kTag, source->handle(), request), 0);
    return request;
  }
  void* receive(std::size_t bytes = 16) {
    void* request = nullptr;
    EXPECT_EQ(net().receive(pair.receive->raw(), to.data(), bytes, kTag, target->handle(), request),
              0);
    return request;
  }
  int test(void* request) {
    bool over = false;
    int bytes = 0;
    return net().test(request, over, bytes);
  }
  void finish(void* request) {
    until([&] {
      bool over = false;
      int bytes = 0;
      EXPECT_EQ(net().test(request, over, bytes), abi::kSuccess);
      return over;
    });
  }

  std::shared_ptr<Plugin> plugin;
  Pair pair;
  Bytes from, to;
  std::unique_ptr<Comm::CommRegistration> source, target;
};

TEST_F(NcclNetRules, RequestsAreTestedInTheirOrderAndNotAfterTheyWereDone) {
  start(8);
  void* const first = receive();
  void* const second = receive();
  EXPECT_EQ(test(second), abi::kInvalidUsage);
  EXPECT_TRUE(said("WARNING nccl net plugin: test of a request that is not the oldest"));
  finish(send());
  finish(first);
  EXPECT_EQ(test(first), abi::kInvalidUsage);
  EXPECT_TRUE(said("test of a request that was done"));
  finish(send());
  finish(second);
  EXPECT_EQ(test(second), abi::kInvalidUsage);
  EXPECT_EQ(test(this), abi::kInvalidArgument);
}

TEST_F(NcclNetRules, NoMoreRequestsThanThereMayBe) {
  for (const int version : {6, 7, 9}) {
    start(version);
    for (int i = 0; i < plugin->max_requests(0); ++i) EXPECT_NE(receive(), nullptr);
    void* request = nullptr;
    EXPECT_EQ(net().receive(pair.receive->raw(), to.data(), 16, kTag, target->handle(), request),
              abi::kInvalidUsage);
    EXPECT_TRUE(said("requests at once in a comm"));
    EXPECT_EQ(request, nullptr);
  }
}

TEST_F(NcclNetRules, ReceivesAreConsumedInTheirOrderAndOnce) {
  start(7);
  void* const first = receive();
  void* const second = receive();
  void* const comm = pair.receive->raw();
  EXPECT_EQ(net().consumed(comm, first), abi::kInvalidUsage) << "not done";
  finish(send());
  finish(send());
  finish(first);
  finish(second);
  EXPECT_EQ(net().consumed(comm, second), abi::kInvalidUsage) << "not the oldest";
  EXPECT_EQ(net().consumed(comm, first), abi::kSuccess);
  EXPECT_EQ(net().consumed(comm, first), abi::kInvalidUsage) << "twice";
  EXPECT_EQ(net().consumed(comm, second), abi::kSuccess);
  EXPECT_EQ(net().consumed(comm, second), abi::kInvalidUsage) << "twice";
}

TEST_F(NcclNetRules, OurCommsConsumeNothingThatIsNotDone) {
  start(7);
  EXPECT_EQ(pair.receive->consumed({}).code(), Code::invalid_argument);
  must(pair.receive->receive(to.data(), 16, kTag, *target, 0));
  EXPECT_EQ(pair.receive->consumed({}).code(), Code::invalid_argument);
  EXPECT_FALSE(said("WARNING")) << Lines::all().text();
  finish(send());
  must(pair.receive->consumed(done(*pair.receive)));
}

TEST_F(NcclNetRules, MemoryIsRegisteredAndMessagesLieInIt) {
  start(9);
  void* request = nullptr;
  void* const comm = pair.send->raw();
  EXPECT_EQ(net().send(comm, from.data(), 16, kTag, nullptr, request), abi::kInvalidArgument);
  EXPECT_EQ(net().send(comm, from.data(), 16, kTag, target->handle(), request),
            abi::kInvalidArgument)
      << "of another comm";
  EXPECT_EQ(net().send(comm, from.data() + 1, from.size(), kTag, source->handle(), request),
            abi::kInvalidArgument);
  EXPECT_EQ(net().send(comm, from.data() - 1, 1, kTag, source->handle(), request),
            abi::kInvalidArgument);
  EXPECT_EQ(net().send(comm, from.data() + from.size(), 0, kTag, source->handle(), request),
            abi::kSuccess);
  finish(request);
  EXPECT_EQ(net().deregister(comm, target->handle()), abi::kInvalidArgument);
}

TEST_F(NcclNetRules, TagsMeet) {
  start(8);
  void* const request = receive();
  void* sent = nullptr;
  ASSERT_EQ(net().send(pair.send->raw(), from.data(), 16, kTag + 1, source->handle(), sent), 0);
  until([&] { return test(request) != abi::kSuccess; });
  EXPECT_TRUE(said("a send of tag 2 meets a receive of tag 1"));
}

TEST_F(NcclNetRules, AHandleStaysWhereItIsBetweenTries) {
  start(10);
  const auto listener = take(Listener::open(plugin, 0));
  alignas(16) Handle handle = listener->handle();
  void* comm = nullptr;
  abi::DeviceHandle* kernels = nullptr;
  ASSERT_EQ(net().connect(0, handle.data(), comm, kernels), abi::kSuccess);
  ASSERT_EQ(comm, nullptr);
  alignas(16) Handle copy = handle;
  EXPECT_EQ(net().connect(0, copy.data(), comm, kernels), abi::kInvalidUsage);
  EXPECT_TRUE(said("a handle that was copied after the first try"));
}

/// The table of a module that is loaded, by the plugin's own declaration.
template <class Table>
const Table& table_of(int version) {
  void* const library = ::dlopen(plugin_file(version).c_str(), RTLD_NOW | RTLD_LOCAL);
  const void* const table = ::dlsym(library, ("ncclNetPlugin_v" + std::to_string(version)).c_str());
  if (table == nullptr) throw std::runtime_error(::dlerror());
  return *static_cast<const Table*>(table);
}

void nowhere(int, unsigned long, const char*, int, const char*, ...) {}

TEST_F(NcclNetRules, ThereIsAConfig) {
  start(10);
  const auto listener = take(Listener::open(plugin, 0));
  Handle handle = listener->handle();
  void* comm = nullptr;
  nccl_test::NetDeviceHandle* kernels = nullptr;
  EXPECT_EQ(table_of<nccl_test::v10::Net>(10).connect(0, nullptr, handle.data(), &comm, &kernels),
            abi::kInvalidUsage);
  EXPECT_TRUE(said("connect without a config"));
  start(11);
  void* context = nullptr;
  EXPECT_EQ(table_of<nccl_test::v11::Net>(11).init(&context, 0, nullptr, nowhere, nullptr),
            abi::kInvalidUsage);
  EXPECT_EQ(context, nullptr);
}

TEST_F(NcclNetRules, AContextEndsBehindItsComms) {
  start(12);
  EXPECT_EQ(net().finalize(), abi::kInvalidUsage);
  EXPECT_TRUE(said("finalize before all comms were closed"));
}

TEST_F(NcclNetRules, CommsAreClosedOnceAndCallsAreOfOpenOnes) {
  start(8);
  int nothing = 0;
  EXPECT_EQ(net().close_send(&nothing), abi::kInvalidArgument);
  EXPECT_EQ(net().close_receive(pair.send->raw()), abi::kInvalidArgument) << "of another kind";
  EXPECT_EQ(net().close_listen(nullptr), abi::kInvalidArgument);
  void* request = nullptr;
  EXPECT_EQ(net().send(pair.receive->raw(), from.data(), 1, kTag, source->handle(), request),
            abi::kInvalidArgument);
}

TEST_F(NcclNetRules, ACommEndsWithoutMemoryButPerhapsWithRequests) {
  start(12);
  void* const open = receive();
  EXPECT_EQ(net().close_send(pair.send->raw()), abi::kSuccess);
  EXPECT_TRUE(said("WARNING nccl net plugin: a comm ends with 1 registrations"));
  source.reset();
  EXPECT_TRUE(said("deregMr of no comm"));
  target.reset();
  EXPECT_TRUE(said("INFO nccl net plugin: memory is given back with requests in flight"));
  EXPECT_EQ(test(open), abi::kInvalidUsage);
  pair.receive.reset();
  EXPECT_TRUE(said("INFO nccl net plugin: a comm ends with 1 requests in flight"));
}

TEST_F(NcclNetRules, FlushesAreForGpuMemoryThatIsNotUnpacked) {
  start(7);
  void* request = nullptr;
  EXPECT_EQ(net().flush(pair.receive->raw(), to.data(), 16, target->handle(), request),
            abi::kInvalidUsage);
  EXPECT_TRUE(said("iflush of a comm that unpacks"));
  EXPECT_EQ(take(pair.receive->flush(to.data(), 16, *target)), nullptr) << "ours does not ask";
  start(8);
  EXPECT_EQ(net().flush(pair.receive->raw(), to.data(), 16, target->handle(), request),
            abi::kInvalidUsage);
  EXPECT_TRUE(said("iflush of host memory"));
}

TEST_F(NcclNetRules, TwoThreadsDoNotCallForOneComm) {
  set("CALL_US", "1000");
  start(8);
  void* const request = receive();
  std::atomic<bool> refused{false};
  const auto call = [&] {
    until([&] {
      if (test(request) != abi::kSuccess) refused = true;
      return refused.load();
    });
  };
  {
    const std::jthread other(call);
    call();
  }
  EXPECT_TRUE(said("while another thread calls for the comm"));
}

}  // namespace nccl_net_rules_test
}  // namespace linkspan::transport::nccl_net
