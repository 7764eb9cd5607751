// Tests the library while a thread of the process captures a CUDA graph in global mode, as PyTorch
// does. Any unguarded call of the library ends the capture.
#include <algorithm>
#include <future>
#include <thread>

#include "cuda/memory.hpp"
#include "cuda/stream.hpp"

#include "bench/bare/graph_entries.hpp"
#include "tests/conformance/engine_fixture.hpp"
#include "tests/support/driver_entries.hpp"

namespace linkspan::test {
namespace graph_capture_test {

constexpr std::uint64_t kMiB = 1u << 20;

/// Captures in a thread of its own, from the constructor to finish().
class CapturingUser {
 public:
  static constexpr std::size_t kBytes = 4096;
  static constexpr unsigned char kFill = 7;

  explicit CapturingUser(const cuda::Device& device)
      : device_(device), graph_(cuda::GraphEntries::find(cuda::driver_entry)), mine_(make(device)) {
    thread_ = std::thread([this] { run(); });
    begun_.get_future().wait();
  }
  ~CapturingUser() {
    if (thread_.joinable()) finish();
  }
  CapturingUser(const CapturingUser&) = delete;
  CapturingUser& operator=(const CapturingUser&) = delete;

  StreamOrder order() const {
    return {.kind = StreamOrder::Kind::created,
            .gpu = device_.info().uuid,
            .handle = mine_.stream.get()};
  }
  /// Ends the capture and runs the graph.
  void finish() {
    enough_.set_value();
    thread_.join();
  }

 private:
  struct Mine {
    cuda::Stream stream;
    cuda::DeviceBuffer memory;
    cuda::PinnedBuffer seen;
  };
  /// Ends the scope here, because the library's guards must protect the capture, not the test's.
  static Mine make(const cuda::Device& device) {
    const cuda::DeviceScope scope = take(device.enter());
    return {.stream = take(cuda::Stream::create(scope)),
            .memory = take(cuda::DeviceBuffer::create(scope, kBytes)),
            .seen = take(cuda::PinnedBuffer::create(scope, kBytes))};
  }

  void run() {
    const cuda::Driver& driver = device_.driver();
    EXPECT_EQ(driver.cuCtxPushCurrent(device_.context()), cuda::CUDA_SUCCESS);
    EXPECT_EQ(graph_.cuStreamBeginCapture(mine_.stream.get(), cuda::CU_STREAM_CAPTURE_MODE_GLOBAL),
              cuda::CUDA_SUCCESS);
    EXPECT_EQ(driver.cuMemsetD8Async(mine_.memory.address(), kFill, kBytes, mine_.stream.get()),
              cuda::CUDA_SUCCESS);
    begun_.set_value();
    enough_.get_future().wait();
    EXPECT_EQ(driver.cuMemcpyAsync(mine_.seen.device_address(), mine_.memory.address(), kBytes,
                                   mine_.stream.get()),
              cuda::CUDA_SUCCESS);
    cuda::CUgraph graph = nullptr;
    EXPECT_EQ(graph_.cuStreamEndCapture(mine_.stream.get(), &graph), cuda::CUDA_SUCCESS)
        << "the capture was disturbed";
    if (graph != nullptr) launch(graph);
    cuda::CUcontext popped = nullptr;
    EXPECT_EQ(driver.cuCtxPopCurrent(&popped), cuda::CUDA_SUCCESS);
  }
  void launch(cuda::CUgraph graph) {
    cuda::CUgraphExec executable = nullptr;
    ASSERT_EQ(graph_.cuGraphInstantiateWithFlags(&executable, graph, 0), cuda::CUDA_SUCCESS);
    EXPECT_EQ(graph_.cuGraphLaunch(executable, mine_.stream.get()), cuda::CUDA_SUCCESS);
    EXPECT_EQ(device_.driver().cuStreamSynchronize(mine_.stream.get()), cuda::CUDA_SUCCESS);
    EXPECT_TRUE(std::all_of(mine_.seen.data(), mine_.seen.data() + kBytes,
                            [](std::byte each) { return each == std::byte{kFill}; }));
    EXPECT_EQ(graph_.cuGraphExecDestroy(executable), cuda::CUDA_SUCCESS);
    EXPECT_EQ(graph_.cuGraphDestroy(graph), cuda::CUDA_SUCCESS);
  }

  const cuda::Device& device_;
  const cuda::GraphEntries graph_;
  const Mine mine_;
  std::promise<void> begun_, enough_;
  std::thread thread_;
};

class GraphCapture : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Status status = need_gpus(2); !status.ok()) GTEST_SKIP() << status.to_string();
    device = take(topology()->activate(topology()->devices()[0].uuid));
    ASSERT_TRUE(cuda::GraphEntries::find(cuda::driver_entry));
  }

  const cuda::Device* device = nullptr;
};

TEST_F(GraphCapture, IsNotDisturbedByTransfersOfAllShapes) {
  const std::vector<std::string> kinds = {"device0", "device1", "pinned", "host"};
  std::vector<Held> here;  // outlives the Engine
  Pair pair;
  pair.far.add("there", {.kind = "device1"});
  pair.far.fill("there", 1);
  for (const std::string& kind : kinds) {
    here.push_back(Held::make(pair.engine, {.kind = kind}));
    here.back().fill(2);
  }
  const RemoteRegion there = pair.remote("there");
  std::vector<Block> many;
  for (std::uint64_t i = 0; i < 512; ++i) many.push_back({i * 2048, i * 2048, 1024});

  CapturingUser user(*device);
  for (const Held& from : here) {
    for (const std::uint64_t bytes : {std::uint64_t{8}, std::uint64_t{4097}, kMiB}) {
      const Block whole[] = {{0, 0, bytes}};
      EXPECT_EQ(finished(pair.peer.write(from.region, there, whole)).to_string(), "ok");
      EXPECT_EQ(finished(pair.peer.read(from.region, there, whole)).to_string(), "ok");
    }
    EXPECT_EQ(finished(pair.peer.write(from.region, there, many)).to_string(), "ok");
  }
  // No thread waits: the ProgressThread sees it.
  const Block whole[] = {{0, 0, kMiB}};
  const Transfer unattended = take(pair.peer.write(here[0].region, there, whole));
  const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
  while (!unattended.done() && !limit.passed()) std::this_thread::yield();
  EXPECT_EQ(unattended.status().to_string(), "ok");
  user.finish();
  EXPECT_EQ(pair.far.difference("there", 1, {{0, 2, 0, kMiB}}), "");
}

TEST_F(GraphCapture, ATransferInTheOrderOfACapturingStreamIsRefused) {
  Held here;  // outlives the Engine
  Pair pair;
  pair.far.add("there", {.kind = "device1"});
  here = Held::make(pair.engine, {.kind = "device0"});
  const RemoteRegion there = pair.remote("there");
  const Block whole[] = {{0, 0, kMiB}};
  const Prepared prepared = take(pair.peer.prepare(Op::write, here.region, there, whole));
  CapturingUser user(*device);
  for (const TransferOptions& options :
       {TransferOptions{.after = user.order()}, TransferOptions{.release = user.order()}}) {
    const Status refused = pair.peer.write(here.region, there, whole, options).status();
    EXPECT_EQ(refused.code(), Code::unsupported);
    EXPECT_NE(refused.what().find("graph"), std::string::npos) << refused.what();
    EXPECT_EQ(prepared.post(options).status().code(), Code::unsupported);
  }
  user.finish();
}

TEST_F(GraphCapture, IsNotDisturbedBySetUpAndTearDown) {
  std::vector<std::byte> plain(kMiB);
  CapturingUser user(*device);
  {
    Held here;  // outlives the Engine
    Pair pair;
    pair.far.add("there", {.kind = "device1"});
    here = Held::make(pair.engine, {.kind = "device0"});
    const RemoteRegion there = pair.remote("there");
    const Region pinned =
        take(pair.engine.register_memory(plain.data(), plain.size(), {.pin = true}));
    const Region shared = take(pair.engine.allocate_shared(kMiB));
    const Block whole[] = {{0, 0, kMiB}};
    for (const Region& region : {here.region, pinned, shared}) {
      EXPECT_EQ(finished(pair.peer.write(region, there, whole)).to_string(), "ok");
      EXPECT_EQ(pair.engine.deregister(region).to_string(), "ok");
    }
    const Result<Transfer> canceled = pair.peer.write(here.region, there, whole);
    EXPECT_FALSE(canceled.ok());  // it is registered no more
  }
  user.finish();
}

}  // namespace graph_capture_test
}  // namespace linkspan::test
