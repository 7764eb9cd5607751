#include "transport/nccl_net/plugin_thread.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/named_thread.hpp"
#include "base/no_memory.hpp"

namespace linkspan::transport::nccl_net {
namespace {

using namespace std::chrono_literals;

constexpr int kSpins = 2000;                  // polls without progress before it naps
constexpr Duration kNap = 50us;               // between polls of a peer that has to act
constexpr Duration kPluginThreadSleep = 60s;  // unless it is woken
constexpr Duration kPluginThreadDrain = 10s;  // at the end

/// Polls the queue; breaks it if memory is short.
bool poll_queue(WorkQueue& queue) {
  try {
    return queue.poll();
  } catch (const std::exception&) {
    queue.end(base::no_memory(Scope::peer));
    return true;  // poll it again
  }
}

}  // namespace

PluginThread::~PluginThread() {
  std::jthread thread;
  end();
  const base::MutexLock lock(mutex_);
  thread = std::move(thread_);
}

void PluginThread::end() {
  const base::MutexLock lock(mutex_);
  ending_ = true;
  changed_.notify_all();
}

Status PluginThread::add(std::shared_ptr<WorkQueue> queue) {
  const base::MutexLock lock(mutex_);
  if (!thread_.joinable()) {
    try {
      thread_ = base::named_thread<"ls-nccl-net">([this] { loop(); });
    } catch (const std::exception& error) {
      return {Code::system, Scope::process, std::string("no thread: ") + error.what()};
    }
  }
  added_.push_back(std::move(queue));
  ++active_queues_;
  changed_.notify_all();
  return {};
}

void PluginThread::wake() {
  const base::MutexLock lock(mutex_);
  woken_ = true;
  changed_.notify_all();
}

void PluginThread::release() {
  const base::MutexLock lock(mutex_);
  releasing_ = true;
  changed_.notify_all();
}

PluginThread::News PluginThread::collect(WorkQueues& queues, Duration sleep) {
  const base::MutexLock lock(mutex_);
  if (sleep > Duration::zero() && !woken_ && !releasing_ && !ending_ && added_.empty())
    changed_.wait(mutex_, base::Deadline::in(sleep));
  woken_ = false;
  try {
    queues.reserve(queues.size() + added_.size());
    for (auto& queue : added_) queues.push_back(std::move(queue));
    added_.clear();
  } catch (const std::exception&) {  // no memory: new queues wait for the next call
    changed_.wait(mutex_, base::Deadline::in(base::kWithoutMemory));
  }
  return {.release = std::exchange(releasing_, false), .end = ending_};
}

void PluginThread::loop() {
  WorkQueues queues;
  int still = 0;  // consecutive polls of all without progress
  Duration sleep = Duration::zero();
  for (News news; !news.end; news = collect(queues, sleep)) {
    bool moved = false, idle = true;
    for (const auto& queue : queues) {
      if (news.release) queue->release();
      moved |= poll_queue(*queue);
      idle &= queue->idle();
    }
    active_queues_ -=
        std::erase_if(queues, [](const auto& queue) { return queue->broken().has_value(); });
    still = moved ? 0 : std::min(still + 1, kSpins);
    if (still != 0) std::this_thread::yield();
    sleep = idle ? kPluginThreadSleep : still == kSpins ? kNap : Duration::zero();
  }
  const auto deadline = base::Deadline::in(kPluginThreadDrain);
  for (const auto& queue : queues)
    queue->end(Status(Code::canceled, Scope::process, "the Engine has ended"));
  while (!queues.empty() && !deadline.passed()) {
    for (const auto& queue : queues) (void)poll_queue(*queue);
    std::erase_if(queues, [](const auto& queue) { return queue->broken().has_value(); });
  }
}

PluginThreads::~PluginThreads() {
  const base::MutexLock lock(mutex_);
  for (Joined& each : all_) each.thread.end();
  all_.clear();
}

PluginThread& PluginThreads::join() {
  const base::MutexLock lock(mutex_);
  const auto is_free = [](const Joined& each) {
    return each.peers == 0 && each.thread.queues() == 0;
  };
  auto chosen = std::ranges::find_if(all_, is_free);
  if (chosen == all_.end() && all_.size() < kMax) chosen = all_.emplace(all_.end());
  if (chosen == all_.end()) chosen = std::ranges::min_element(all_, {}, &Joined::peers);
  ++chosen->peers;
  return chosen->thread;
}

void PluginThreads::leave(const PluginThread& thread) {
  const base::MutexLock lock(mutex_);
  for (Joined& each : all_)
    if (&each.thread == &thread) --each.peers;
}

void PluginThreads::release() {
  const base::MutexLock lock(mutex_);
  for (Joined& each : all_) each.thread.release();
}

}  // namespace linkspan::transport::nccl_net
