#include "engine/progress/progress_thread.hpp"

#include <poll.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <string>
#include <system_error>

#include "base/named_thread.hpp"
#include "base/no_memory.hpp"

namespace linkspan::engine {
namespace {

using namespace std::chrono_literals;
using PollWhen = transport::PollHint::When;

constexpr Duration kLongWait = 1s;       // the cost of a missed notification
constexpr Duration kOverdueWait = 50us;  // while something is a little overdue
constexpr Duration kShortWait = 100us;   // while it is not needed, and may soon be
constexpr Duration kStayAwake = 1ms;     // after something was outstanding
constexpr Duration kYieldFor = 100us;
constexpr Duration kWakeUpLatency =
    75us;                               // at most, until a sleeper of a virtual machine runs again
constexpr unsigned long kSlack = 1000;  // ns that the kernel may sleep too long; usually 50 us

}  // namespace

Result<std::unique_ptr<ProgressThread>> ProgressThread::create() {
  auto event = base::WakeEvent::create();
  if (!event.ok()) return event.status();
  return std::unique_ptr<ProgressThread>(new ProgressThread(*std::move(event)));
}

Status ProgressThread::start(std::function<transport::PollHint()> poll) {
  poll_ = std::move(poll);
  try {
    thread_ = base::named_thread<"ls-progress">([this](const std::stop_token& stop) { run(stop); });
  } catch (const std::system_error& error) {
    return {Code::system, Scope::process, std::string("no thread: ") + error.what()};
  }
  return {};
}

void ProgressThread::end() noexcept {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  wake();
  thread_.join();
}

void ProgressThread::wake() noexcept { notify(IdleState::short_wait); }

void ProgressThread::expect() noexcept { notify(IdleState::long_wait); }

void ProgressThread::notify(IdleState from) noexcept {
  notified_.store(true, std::memory_order_seq_cst);
  if (idle_.load(std::memory_order_seq_cst) >= from) event_.wake();
}

void ProgressThread::wait_up_to(Duration at_most, IdleState how) noexcept {
  idle_.store(how, std::memory_order_seq_cst);
  if (notified_.load(std::memory_order_seq_cst)) at_most = Duration::zero();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(at_most);
  const timespec limit{.tv_sec = seconds.count(), .tv_nsec = (at_most - seconds).count()};
  pollfd readable{.fd = event_.fd(), .events = POLLIN, .revents = 0};
  if (::ppoll(&readable, 1, &limit, nullptr) > 0) event_.clear();
  idle_.store(IdleState::awake, std::memory_order_seq_cst);
}

void ProgressThread::run(const std::stop_token& stop) {
  ::prctl(PR_SET_TIMERSLACK, kSlack);  // refused: it sleeps as others do
  base::Time busy_since{}, active{};
  while (!stop.stop_requested()) {
    const bool notified = notified_.exchange(false, std::memory_order_seq_cst);
    transport::PollHint next;
    try {
      next = poll_();
    } catch (const std::exception&) {
      next = {PollWhen::at, base::Clock::steady().now() + base::kWithoutMemory};
    }
    const base::Time now = base::Clock::steady().now();
    if (notified || next.when != PollWhen::idle) active = now;
    if (next.when == PollWhen::idle) {
      busy_since = {};
      // Short waits spare a thread that submits one transfer after another the system call of
      // wake().
      const bool lately = now - active < kStayAwake;
      wait_up_to(lately ? kShortWait : kLongWait,
                 lately ? IdleState::short_wait : IdleState::long_wait);
      continue;
    }
    if (busy_since == base::Time{} || next.moved) busy_since = now;
    const Duration left = next.when == PollWhen::now ? Duration::zero() : next.at - now;
    if (left > kYieldFor)
      wait_up_to(std::min<Duration>(left - kWakeUpLatency, kLongWait),
                 left > kShortWait ? IdleState::long_wait : IdleState::short_wait);
    else if (next.patient || now - busy_since > 1ms)
      wait_up_to(std::max(left, kOverdueWait), IdleState::short_wait);
    else
      std::this_thread::yield();
    if (left > kYieldFor) busy_since = {};  // it slept until the predicted end
  }
}

}  // namespace linkspan::engine
