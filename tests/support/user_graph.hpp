// tests/support/user_graph.hpp - a CUDA graph that a user captures in a stream of its own.
//
// Threads: externally synchronised.
#pragma once

#include <utility>
#include <vector>

#include "bench/bare/graph_entries.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "tests/support/driver_entries.hpp"
#include "tests/support/kinds.hpp"
#include "tests/support/take.hpp"

namespace linkspan::test {

/// Captures in global mode, which any unguarded call of the library ends.
class UserGraph {
 public:
  explicit UserGraph(std::size_t gpu = 0)
      : device_(take(topology()->activate(topology()->devices()[gpu].uuid))),
        stream_(take(cuda::Stream::create(enter()))) {}
  ~UserGraph() { destroy(); }
  UserGraph(const UserGraph&) = delete;
  UserGraph& operator=(const UserGraph&) = delete;

  StreamOrder order() const {
    return {
        .kind = StreamOrder::Kind::created, .gpu = device_->info().uuid, .handle = stream_.get()};
  }
  /// Captures what `act` puts into the stream, and returns its result. The graph has `executables`.
  template <class Act>
  auto capture(Act act, std::size_t executables = 1) {
    const Context context(*device_);  // no DeviceScope, whose relaxed mode would guard the library
    check(graph_.cuStreamBeginCapture(stream_.get(), cuda::CU_STREAM_CAPTURE_MODE_GLOBAL));
    auto result = act();
    cuda::CUgraph graph = nullptr;
    check(graph_.cuStreamEndCapture(stream_.get(), &graph));
    for (std::size_t i = 0; i < executables; ++i) {
      executables_.push_back(nullptr);
      check(graph_.cuGraphInstantiateWithFlags(&executables_.back(), graph, 0));
    }
    check(graph_.cuGraphDestroy(graph));
    return result;
  }
  void launch(std::size_t executable = 0) {
    const Context context(*device_);
    check(graph_.cuGraphLaunch(executables_.at(executable), stream_.get()));
  }
  /// Waits until all launches have run.
  void synchronize() { must(stream_.synchronize(enter())); }
  void destroy() {
    const Context context(*device_);
    for (const cuda::CUgraphExec each : std::exchange(executables_, {}))
      check(graph_.cuGraphExecDestroy(each));
  }

 private:
  class Context {
   public:
    explicit Context(const cuda::Device& device) : device_(device) {
      check(device_.driver().cuCtxPushCurrent(device_.context()));
    }
    ~Context() {
      cuda::CUcontext popped = nullptr;
      check(device_.driver().cuCtxPopCurrent(&popped));
    }
    Context(const Context&) = delete;
    Context& operator=(const Context&) = delete;

   private:
    const cuda::Device& device_;
  };
  static void check(cuda::CUresult r) { EXPECT_EQ(r, cuda::CUDA_SUCCESS); }
  cuda::DeviceScope enter() const { return take(device_->enter()); }

  const cuda::Device* const device_;
  const cuda::GraphEntries graph_ = cuda::GraphEntries::find(cuda::driver_entry);
  cuda::Stream stream_;
  std::vector<cuda::CUgraphExec> executables_;
};

}  // namespace linkspan::test
