// transport/nccl_net/plugin_thread.hpp - the one thread of a transport that calls its plugin for
// the flows: the plugin wants each comm called by one thread, and asked again and again.
//
// It spins while bytes move, naps where a peer has to move first, and sleeps where nothing is
// ordered.
// Threads: any thread; it starts with the first flow.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.hpp"
#include "transport/nccl_net/work_queue.hpp"

namespace linkspan::transport::nccl_net {

class PluginThread {
 public:
  PluginThread() = default;
  PluginThread(const PluginThread&) = delete;
  PluginThread& operator=(const PluginThread&) = delete;
  /// Breaks what is left, and waits for its GPUs, 10 s at most.
  ~PluginThread();

  /// Until it is broken. system: there is no thread to be had.
  Status add(std::shared_ptr<WorkQueue> queue) LINKSPAN_EXCLUDES(mutex_);
  /// One of the flows was told something.
  void wake() LINKSPAN_EXCLUDES(mutex_);
  /// Some regions were retracted: each flow gives their registrations back.
  void release() LINKSPAN_EXCLUDES(mutex_);

 private:
  using WorkQueues = std::vector<std::shared_ptr<WorkQueue>>;  // also the Endpoints'
  void loop() LINKSPAN_EXCLUDES(mutex_);
  struct News {
    bool release = false, end = false;
  };
  /// Takes what is new; sleeps before, if nothing is.
  News collect(WorkQueues& queues, Duration sleep) LINKSPAN_EXCLUDES(mutex_);

  base::Mutex mutex_;
  base::Condition changed_;
  WorkQueues added_ LINKSPAN_GUARDED_BY(mutex_);
  bool woken_ LINKSPAN_GUARDED_BY(mutex_) = false, releasing_ LINKSPAN_GUARDED_BY(mutex_) = false,
              ending_ LINKSPAN_GUARDED_BY(mutex_) = false;
  std::jthread thread_ LINKSPAN_GUARDED_BY(mutex_);
};

}  // namespace linkspan::transport::nccl_net
