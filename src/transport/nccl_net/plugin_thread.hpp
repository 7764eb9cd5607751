// transport/nccl_net/plugin_thread.hpp - the threads of a transport that call its plugin for the
// queues: a plugin wants each comm polled, by one thread.
//
// Each peer has a thread of its own, so that a call that does not return delays that peer alone;
// beyond PluginThreads::kMax peers some share one. A thread spins while bytes move, sleeps briefly
// while a peer has to act first, and sleeps until woken when all its queues are idle.
// Threads: any thread may call; each one of ours starts with its first queue.
#pragma once

#include <atomic>
#include <cstddef>
#include <list>
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
  /// Asks the thread to break what is left and to end; the destructor waits for that.
  void end() LINKSPAN_EXCLUDES(mutex_);
  /// Returns how many queues are not broken yet. A call of the plugin for one may never return.
  std::size_t queues() const noexcept { return active_queues_; }

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
  std::atomic<std::size_t> active_queues_{0};
  std::jthread thread_ LINKSPAN_GUARDED_BY(mutex_);
};

/// The threads of one transport. A thread that no peer has any more stays for the next peer.
/// Threads: any thread.
class PluginThreads {
 public:
  static constexpr std::size_t kMax = 16;

  PluginThreads() = default;
  PluginThreads(const PluginThreads&) = delete;
  PluginThreads& operator=(const PluginThreads&) = delete;
  /// Ends all threads at once, as ~PluginThread ends one.
  ~PluginThreads();

  /// Returns a thread for one more peer, until leave(): one without peers and queues, a new one, or
  /// the one that the fewest peers have.
  PluginThread& join() LINKSPAN_EXCLUDES(mutex_);
  void leave(const PluginThread& thread) LINKSPAN_EXCLUDES(mutex_);
  void release() LINKSPAN_EXCLUDES(mutex_);

 private:
  struct Joined {
    PluginThread thread;
    std::size_t peers = 0;
  };
  base::Mutex mutex_;
  std::list<Joined> all_ LINKSPAN_GUARDED_BY(mutex_);
};

}  // namespace linkspan::transport::nccl_net
