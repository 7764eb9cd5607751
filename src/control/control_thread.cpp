#include "control/control_thread.hpp"

#include <asio/post.hpp>
#include <exception>
#include <utility>

#include "base/interrupt.hpp"
#include "base/named_thread.hpp"
#include "base/no_memory.hpp"

namespace linkspan::control {

void ControlThread::start(std::function<void()> resume, std::function<bool()> recover) {
  thread_ = base::named_thread<"ls-control">(
      [this, resume = std::move(resume), recover = std::move(recover)] { run(resume, recover); });
}

void ControlThread::stay_awake(Duration time) {
  const base::Time now = base::Clock::steady().now();
  if (awake_until_.exchange(now + time) < now) asio::post(io_, [] {});
}

bool ControlThread::await_end(base::Deadline deadline, bool interruptible) {
  const base::MutexLock lock(mutex_);
  while (!ended_ && !deadline.passed()) {
    if (!interruptible)
      changed_.wait(mutex_, deadline);
    else if (base::wait_or_interrupted(changed_, mutex_, deadline))
      break;
  }
  return ended_;
}

bool ControlThread::join() {
  if (!thread_.joinable()) return false;
  thread_.join();
  return true;
}

void ControlThread::run(const std::function<void()>& resume, const std::function<bool()>& recover) {
  for (bool thrown = false; !io_.stopped();) {
    try {
      if (thrown) {
        io_.run_one_for(base::kWithoutMemory);
        resume();
        thrown = false;
      }
      if (!recover())
        io_.run_one_for(base::kWithoutMemory);
      else if (base::Clock::steady().now() >= awake_until_.load())
        run_one();
      else if (io_.poll() == 0)
        std::this_thread::yield();
    } catch (const std::exception&) {
      thrown = true;
    }
  }
  log_.write_all_counted();
  const base::MutexLock lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

/// Runs one handler. Waits at most until suppressed lines are due in the log.
void ControlThread::run_one() {
  if (const auto next = log_.write_counted())
    io_.run_one_until(*next);
  else
    io_.run_one();
}

}  // namespace linkspan::control
