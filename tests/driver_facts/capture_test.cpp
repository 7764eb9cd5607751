// Tests what other threads may do while one thread captures a CUDA graph.
#include <cstdlib>
#include <memory>

#include "bench/bare/graph_entries.hpp"
#include "tests/driver_facts/fact.hpp"
#include "tests/support/driver_entries.hpp"

namespace linkspan::test {
namespace capture_test {

class Capture : public Fact {
 protected:
  struct Call {
    const char* name;
    std::function<CUresult()> make;
  };

  void SetUp() override {
    Fact::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    graph = GraphEntries::find(driver_entry);
    ASSERT_TRUE(graph);
    capturing = new_stream();
    other = new_stream();
    event = new_event();
    memory = new_memory();
    pinned = new_pinned();
    pages.reset(std::aligned_alloc(4096, kBytes));
  }

  void begin() const {
    ASSERT_EQ(graph.cuStreamBeginCapture(capturing, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    ASSERT_EQ(cu->cuMemsetD8Async(memory, 7, 4096, capturing), CUDA_SUCCESS);
  }
  /// Ends the capture and destroys the graph.
  CUresult end() const {
    CUgraph made = nullptr;
    const CUresult r = graph.cuStreamEndCapture(capturing, &made);
    if (made != nullptr) {
      EXPECT_EQ(graph.cuGraphDestroy(made), CUDA_SUCCESS);
    }
    return r;
  }
  /// Runs the call in another thread, in the context of the first GPU.
  CUresult elsewhere(const std::function<CUresult()>& call, CUstreamCaptureMode mode) const {
    CUresult result = CUDA_SUCCESS;
    std::thread([&] {
      const Current current(*cu, contexts[0]);
      EXPECT_EQ(cu->cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
      result = call();
    }).join();
    return result;
  }
  CUstreamCaptureStatus status(CUstream stream) const {
    CUstreamCaptureStatus now{};
    EXPECT_EQ(cu->cuStreamIsCapturing(stream, &now), CUDA_SUCCESS);
    return now;
  }

  /// Returns calls that may disturb a capture; each is undone at once.
  std::vector<Call> unsafe_calls() {
    return {{"cuEventQuery", [this] { return cu->cuEventQuery(event); }},
            {"cuStreamQuery", [this] { return cu->cuStreamQuery(other); }},
            {"cuStreamSynchronize", [this] { return cu->cuStreamSynchronize(other); }},
            {"cuMemAlloc",
             [this] {
               CUdeviceptr made = 0;
               const CUresult r = cu->cuMemAlloc(&made, 4096);
               if (r == CUDA_SUCCESS) surplus.push_back(made);
               return r;
             }},
            {"cuMemHostAlloc",
             [this] {
               void* made = nullptr;
               const CUresult r = cu->cuMemHostAlloc(&made, 4096, CU_MEMHOSTALLOC_PORTABLE);
               if (r == CUDA_SUCCESS) host_surplus.push_back(made);
               return r;
             }},
            {"cuMemHostRegister", [this] {
               const CUresult r =
                   cu->cuMemHostRegister(pages.get(), kBytes, CU_MEMHOSTREGISTER_PORTABLE);
               registered = registered || r == CUDA_SUCCESS;
               return r;
             }}};
  }
  std::vector<Call> safe_calls() {
    return {{"cuMemcpyAsync",
             [this] { return cu->cuMemcpyAsync(memory + 4096, address_of(pinned), 4096, other); }},
            {"cuMemsetD8Async", [this] { return cu->cuMemsetD8Async(memory, 1, 64, other); }},
            {"cuStreamWriteValue64", [this] { return write(other, 5); }},
            {"cuEventRecord", [this] { return cu->cuEventRecord(event, other); }},
            {"cuStreamWaitEvent", [this] { return cu->cuStreamWaitEvent(other, event, 0); }},
            {"cuStreamIsCapturing",
             [this] {
               CUstreamCaptureStatus now{};
               const CUresult r = cu->cuStreamIsCapturing(capturing, &now);
               EXPECT_EQ(now, CU_STREAM_CAPTURE_STATUS_ACTIVE);
               return r;
             }},
            {"cuPointerGetAttribute",
             [this] {
               unsigned type = 0;
               return cu->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory);
             }},
            {"cuIpcGetMemHandle", [this] {
               CUipcMemHandle handle{};
               return cu->cuIpcGetMemHandle(&handle, memory);
             }}};
  }

  void TearDown() override {
    for (const CUdeviceptr each : surplus) EXPECT_EQ(cu->cuMemFree(each), CUDA_SUCCESS);
    for (void* each : host_surplus) EXPECT_EQ(cu->cuMemFreeHost(each), CUDA_SUCCESS);
    if (registered) {
      EXPECT_EQ(cu->cuMemHostUnregister(pages.get()), CUDA_SUCCESS);
    }
    Fact::TearDown();
  }

  GraphEntries graph;
  CUstream capturing = nullptr, other = nullptr;
  CUevent event = nullptr;
  CUdeviceptr memory = 0;
  std::byte* pinned = nullptr;
  std::unique_ptr<void, decltype(&std::free)> pages{nullptr, &std::free};
  std::vector<CUdeviceptr> surplus;
  std::vector<void*> host_surplus;
  bool registered = false;
};

TEST_F(Capture, QueriesAndAllocationsOfAnotherThreadEndIt) {
  std::string words;
  for (const Call& call : unsafe_calls()) {
    begin();
    const CUresult answer = elsewhere(call.make, CU_STREAM_CAPTURE_MODE_GLOBAL);
    const CUresult ended = end();
    words += std::string(words.empty() ? "" : ", ") + call.name + " " + std::to_string(answer) +
             " and " + std::to_string(ended);
    EXPECT_EQ(answer, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) << call.name;
    EXPECT_EQ(ended, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) << call.name;
  }
  found(words);
}

TEST_F(Capture, TheSameCallsOfARelaxedThreadDoNot) {
  begin();
  for (const Call& call : unsafe_calls())
    EXPECT_EQ(elsewhere(call.make, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS) << call.name;
  EXPECT_EQ(end(), CUDA_SUCCESS);
}

TEST_F(Capture, SubmissionsToOtherStreamsDoNot) {
  begin();
  for (const Call& call : safe_calls())
    EXPECT_EQ(elsewhere(call.make, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS) << call.name;
  EXPECT_TRUE(comes(5));
  EXPECT_EQ(end(), CUDA_SUCCESS);
}

TEST_F(Capture, AnEventRecordedInItPullsItsWaiterIn) {
  begin();
  EXPECT_EQ(cu->cuEventRecord(event, capturing), CUDA_SUCCESS);
  EXPECT_EQ(status(other), CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_EQ(cu->cuStreamWaitEvent(other, event, 0), CUDA_SUCCESS);
  EXPECT_EQ(status(other), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(cu->cuMemcpyAsync(memory + 4096, address_of(pinned), 4096, other), CUDA_SUCCESS);
  EXPECT_EQ(write(other, 5), CUDA_SUCCESS);
  EXPECT_TRUE(stays_false([&] { return word(5) != 0; })) << "it ran";
  EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
}

TEST_F(Capture, WhetherAStreamCapturesCanBeAskedByAnyThread) {
  EXPECT_EQ(status(capturing), CU_STREAM_CAPTURE_STATUS_NONE);
  begin();
  EXPECT_EQ(status(capturing), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  for (const auto mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED}) {
    CUstreamCaptureStatus seen{};
    EXPECT_EQ(elsewhere([&] { return cu->cuStreamIsCapturing(capturing, &seen); }, mode),
              CUDA_SUCCESS);
    EXPECT_EQ(seen, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  }
  EXPECT_EQ(end(), CUDA_SUCCESS);
}

TEST_F(Capture, AUserObjectEndsAfterTheLastExecutableAndItsLaunches) {
  begin();
  CUstreamCaptureStatus now{};
  CUgraph capturing_graph = nullptr, made = nullptr;
  ASSERT_EQ(
      cu->cuStreamGetCaptureInfo(capturing, &now, nullptr, &capturing_graph, nullptr, nullptr),
      CUDA_SUCCESS);
  ASSERT_EQ(now, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  std::atomic<bool> ended{false};
  CUuserObject object = nullptr;
  ASSERT_EQ(cu->cuUserObjectCreate(
                &object, &ended, [](void* data) { *static_cast<std::atomic<bool>*>(data) = true; },
                1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC),
            CUDA_SUCCESS);
  ASSERT_EQ(cu->cuGraphRetainUserObject(capturing_graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE),
            CUDA_SUCCESS);
  ASSERT_EQ(graph.cuStreamEndCapture(capturing, &made), CUDA_SUCCESS);
  CUgraphExec executable = nullptr;
  ASSERT_EQ(graph.cuGraphInstantiateWithFlags(&executable, made, 0), CUDA_SUCCESS);
  EXPECT_EQ(graph.cuGraphDestroy(made), CUDA_SUCCESS);
  EXPECT_TRUE(stays_false([&] { return ended.load(); })) << "its executable exists";
  hold(other, 5);
  EXPECT_EQ(graph.cuGraphLaunch(executable, other), CUDA_SUCCESS);
  EXPECT_EQ(graph.cuGraphExecDestroy(executable), CUDA_SUCCESS);
  EXPECT_TRUE(stays_false([&] { return ended.load(); })) << "its launch has not run";
  release(5);
  EXPECT_TRUE(eventually([&] { return ended.load(); }));
}

}  // namespace capture_test
}  // namespace linkspan::test
