// transport/tcp/stream_thread.hpp - the threads that move the bytes of streams, each of its own.
//
// A thread sleeps in epoll while its sockets have nothing and nobody wakes it. It spins a little
// before, and as long as a GPU copies for one of its streams.
// Threads: any thread may call.
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "base/fd.hpp"
#include "base/mutex.hpp"
#include "linkspan/status.hpp"

namespace linkspan::transport::tcp {

class Stream;

class StreamThread {
 public:
  /// system: no thread or no file is to be had.
  static Result<std::unique_ptr<StreamThread>> start();
  StreamThread(const StreamThread&) = delete;
  StreamThread& operator=(const StreamThread&) = delete;
  /// Its streams' wires have failed. Waits for their GPUs, 10 s at most.
  ~StreamThread();

  /// Until it is over. system: epoll has no room for it.
  Status add(std::shared_ptr<Stream> stream) LINKSPAN_EXCLUDES(mutex_);
  void wake();
  std::size_t streams() const noexcept { return count_; }

 private:
  using Streams = std::vector<std::shared_ptr<Stream>>;  // also their wires'
  StreamThread(base::Fd epoll, base::Fd bell) : epoll_(std::move(epoll)), bell_(std::move(bell)) {}
  void run(const std::stop_token& stop) LINKSPAN_EXCLUDES(mutex_);
  bool wait(Duration most);
  void collect(Streams& streams) LINKSPAN_EXCLUDES(mutex_);

  const base::Fd epoll_, bell_;
  std::atomic<bool> rung_{false}, sleeps_{false};
  std::atomic<std::size_t> count_{0};  // of its streams
  base::Mutex mutex_;
  Streams added_ LINKSPAN_GUARDED_BY(mutex_);
  std::jthread thread_;  // last
};

/// As many as there may be, each started when all others have streams.
class StreamThreads {
 public:
  explicit StreamThreads(unsigned most) : most_(most) {}
  /// The one with the fewest. Errors as StreamThread::start().
  Result<StreamThread*> next() LINKSPAN_EXCLUDES(mutex_);

 private:
  const unsigned most_;
  base::Mutex mutex_;
  std::vector<std::unique_ptr<StreamThread>> all_ LINKSPAN_GUARDED_BY(mutex_);
};

}  // namespace linkspan::transport::tcp
