#include "integrations/nixl/src/background_tasks.hpp"

#include <poll.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <system_error>
#include <utility>

#include "base/named_thread.hpp"

namespace linkspan::nixl {
namespace {

constexpr Duration kIdle = std::chrono::seconds(60), kRetry = std::chrono::milliseconds(100);

}  // namespace

BackgroundTasks::BackgroundTasks(CompletionQueue queue, base::WakeEvent wake)
    : queue_(std::move(queue)), wake_(std::move(wake)) {}

Result<std::unique_ptr<BackgroundTasks>> BackgroundTasks::start() {
  auto queue = CompletionQueue::create();
  if (!queue.ok()) return queue.status();
  auto wake = base::WakeEvent::create();
  if (!wake.ok()) return wake.status();
  std::unique_ptr<BackgroundTasks> out(new BackgroundTasks(*std::move(queue), *std::move(wake)));
  try {
    out->thread_ = base::named_thread<"ls-nixl">(
        [tasks = out.get()](const std::stop_token& stop) { tasks->run(stop); });
  } catch (const std::system_error& error) {
    return Status(Code::no_resource, Scope::process,
                  std::string("no thread can be started: ") + error.what());
  }
  return out;
}

BackgroundTasks::~BackgroundTasks() {
  thread_.request_stop();
  wake_.wake();
}

void BackgroundTasks::add(Task task) {
  {
    base::MutexLock lock(mutex_);
    added_.push_back(std::move(task));
  }
  wake_.wake();
}

void BackgroundTasks::watch(const AnyFuture& future) {
  if (!queue_.add(future, 0).ok()) wake_.wake();  // no call: it is done
}

void BackgroundTasks::run(const std::stop_token& stop) {
  std::vector<Task> tasks;
  std::optional<base::Time> next;
  while (!stop.stop_requested()) {
    const base::Time now = base::Clock::steady().now();
    const auto wait = base::Deadline::in(next ? *next - now : kIdle);
    pollfd fds[] = {{wake_.fd(), POLLIN, 0}, {queue_.fd(), POLLIN, 0}};
    ::poll(fds, std::size(fds), wait.left_ms());
    wake_.clear();
    queue_.take();
    if (!stop.stop_requested()) next = run_tasks(tasks);
  }
}

std::optional<base::Time> BackgroundTasks::run_tasks(std::vector<Task>& tasks) {
  {
    base::MutexLock lock(mutex_);
    std::ranges::move(added_, std::back_inserter(tasks));
    added_.clear();
  }
  std::optional<base::Time> next;
  std::erase_if(tasks, [&next](Task& task) {
    std::optional<base::Time> again;
    try {
      again = task();
    } catch (const std::exception&) {  // no memory
      again = base::Clock::steady().now() + kRetry;
    }
    if (again) next = next ? std::min(*next, *again) : again;
    return !again;
  });
  return next;
}

}  // namespace linkspan::nixl
