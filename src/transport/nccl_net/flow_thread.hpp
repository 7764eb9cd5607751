// transport/nccl_net/flow_thread.hpp - the one thread of a transport that calls its plugin for the
// flows: the plugin wants each comm called by one thread, and asked again and again.
//
// It spins while bytes move, naps where a peer has to move first, and sleeps where nothing is
// ordered.
// Threads: any thread; it starts with the first flow.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.hpp"
#include "transport/nccl_net/flow.hpp"

namespace linkspan::transport::nccl_net {

class FlowThread {
 public:
  FlowThread() = default;
  FlowThread(const FlowThread&) = delete;
  FlowThread& operator=(const FlowThread&) = delete;
  /// Breaks what is left, and waits for its GPUs, 10 s at most.
  ~FlowThread();

  /// Until it is broken. system: there is no thread to be had.
  Status add(std::shared_ptr<Flow> flow) LINKSPAN_EXCLUDES(mutex_);
  /// One of the flows was told something.
  void wake() LINKSPAN_EXCLUDES(mutex_);
  /// Some regions were retracted: each flow gives their registrations back.
  void release() LINKSPAN_EXCLUDES(mutex_);

 private:
  using Flows = std::vector<std::shared_ptr<Flow>>;  // also the Endpoints'
  void loop() LINKSPAN_EXCLUDES(mutex_);
  struct News {
    bool release = false, end = false;
  };
  /// Takes what is new; sleeps before, if nothing is.
  News collect(Flows& flows, Duration sleep) LINKSPAN_EXCLUDES(mutex_);

  base::Mutex mutex_;
  base::Condition changed_;
  Flows added_ LINKSPAN_GUARDED_BY(mutex_);
  bool woken_ LINKSPAN_GUARDED_BY(mutex_) = false, releasing_ LINKSPAN_GUARDED_BY(mutex_) = false,
              ending_ LINKSPAN_GUARDED_BY(mutex_) = false;
  std::jthread thread_ LINKSPAN_GUARDED_BY(mutex_);
};

}  // namespace linkspan::transport::nccl_net
