// transport/nccl_net/plugin_thread.hpp - the one thread of a transport that calls its plugin for
// the queues: a plugin wants each comm polled, by one thread.
//
// It spins while bytes move, sleeps briefly while a peer has to act first, and sleeps until woken
// when all queues are idle.
// Threads: any thread may call; the thread starts with the first queue.
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
  /// Breaks the remaining queues and waits for their GPUs, 10 s at most.
  ~PluginThread();

  /// Polls the queue until it is broken. system: no thread can be started.
  Status add(std::shared_ptr<WorkQueue> queue) LINKSPAN_EXCLUDES(mutex_);
  /// Wakes the thread after a queue was given something to do.
  void wake() LINKSPAN_EXCLUDES(mutex_);
  /// Makes each queue end its registrations of retracted regions.
  void release() LINKSPAN_EXCLUDES(mutex_);

 private:
  using WorkQueues = std::vector<std::shared_ptr<WorkQueue>>;  // shared with the Endpoints
  void loop() LINKSPAN_EXCLUDES(mutex_);
  struct News {
    bool release = false, end = false;
  };
  /// Moves new queues to `queues`; sleeps first if there is no news.
  News collect(WorkQueues& queues, Duration sleep) LINKSPAN_EXCLUDES(mutex_);

  base::Mutex mutex_;
  base::Condition changed_;
  WorkQueues added_ LINKSPAN_GUARDED_BY(mutex_);
  bool woken_ LINKSPAN_GUARDED_BY(mutex_) = false, releasing_ LINKSPAN_GUARDED_BY(mutex_) = false,
              ending_ LINKSPAN_GUARDED_BY(mutex_) = false;
  std::jthread thread_ LINKSPAN_GUARDED_BY(mutex_);
};

}  // namespace linkspan::transport::nccl_net
