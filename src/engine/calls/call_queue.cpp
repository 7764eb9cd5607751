#include "engine/calls/call_queue.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "linkspan/interrupt_check.hpp"

namespace linkspan::engine {

Status CallQueue::Call::timed_out() const {
  return {Code::timed_out, Scope::request,
          target + ": not begun, because " + std::to_string(kMaxThreads) +
              " other calls of its kind, or one of its target, went on until its time-out: try "
              "again, with a longer one"};
}

std::shared_ptr<FutureState> CallQueue::start(const std::string& target, Duration timeout,
                                              Act act) {
  auto state = std::make_shared<FutureState>();  // shared with the Futures
  const base::Deadline deadline = base::Deadline::in(timeout);
  std::uint64_t id = 0;
  std::shared_ptr<Strand> strand;
  bool first_to_expire = false;
  {
    const base::MutexLock lock(mutex_);
    if (!closed_.ok()) {
      state->finish(closed_);
      return state;
    }
    if (calls_.size() >= kMaxCalls) {
      state->finish({Code::no_resource, Scope::process,
                     target + ": " + std::to_string(kMaxCalls) +
                         " calls of its kind are outstanding; try again when some are done"});
      return state;
    }
    strand = strand_of(target);
    id = ++last_id_;
    calls_.emplace(id, Call{state, target, deadline});
    const base::Time expiry = base::Clock::steady().now() + deadline.left();
    first_to_expire = expiry < next_expiry_.load(std::memory_order_relaxed);
    if (first_to_expire) next_expiry_.store(expiry, std::memory_order_relaxed);
  }
  try {
    base::Executor::Task task = [this, id, act = std::move(act)] { run(id, act); };
    if (!executor_.try_run(task, std::move(strand))) {
      forget(id);
      state->finish({Code::no_resource, Scope::process, target + ": no thread can be started"});
    }
  } catch (const std::exception&) {
    forget(id);
    throw;
  }
  if (first_to_expire) progress_.wake();
  return state;
}

std::shared_ptr<CallQueue::Strand> CallQueue::strand_of(const std::string& target) {
  std::erase_if(strands_, [](const auto& each) { return each.second.expired(); });
  std::weak_ptr<Strand>& known = strands_[target];
  auto strand = known.lock();
  if (strand == nullptr) known = strand = std::make_shared<Strand>();  // shared by its calls
  return strand;
}

/// Runs on a thread of the Executor.
void CallQueue::run(std::uint64_t id, const Act& act) {
  const Call& call = begin(id);
  try {
    FutureState& state = *call.state;
    const InterruptCheck ended([&state] { return state.done(); });
    if (const Duration left = call.deadline.left(); left == Duration::zero())
      state.finish(call.timed_out());
    else if (!state.done())
      act(state, left);
  } catch (const std::exception&) {
    call.state->finish(no_memory_);
  }
  forget(id);
}

/// Returns the call, which stays where it is until its task calls forget().
const CallQueue::Call& CallQueue::begin(std::uint64_t id) {
  const base::MutexLock lock(mutex_);
  Call& call = calls_.find(id)->second;
  call.begun = true;
  return call;
}

void CallQueue::forget(std::uint64_t id) {
  decltype(calls_)::node_type ended;  // and perhaps a mapping, so off the lock
  const base::MutexLock lock(mutex_);
  ended = calls_.extract(id);
}

transport::PollHint CallQueue::expire(base::Time now) {
  using When = transport::PollHint::When;
  base::Time next = next_expiry_.load(std::memory_order_relaxed);
  if (now >= next) {
    const base::MutexLock lock(mutex_);
    next = base::Time::max();
    for (const auto& [id, call] : calls_) {
      if (!call.waits()) continue;
      if (const Duration left = call.deadline.left(); left == Duration::zero())
        call.state->finish(call.timed_out());
      else
        next = std::min(next, base::Clock::steady().now() + left);
    }
    next_expiry_.store(next, std::memory_order_relaxed);
  }
  if (next == base::Time::max()) return {};
  return {.when = When::at, .at = next, .patient = true};
}

void CallQueue::close(const Status& why) {
  const base::MutexLock lock(mutex_);
  closed_ = why;
  for (const auto& [id, call] : calls_) call.state->finish(why);
}

transport::PollHint AsyncCalls::expire(base::Time now) {
  return transport::earlier(transport::earlier(connects.expire(now), lookups.expire(now)),
                            deregistrations.expire(now));
}

void AsyncCalls::close(const Status& why) {
  for (CallQueue* queue : {&connects, &lookups, &deregistrations}) queue->close(why);
}

bool AsyncCalls::end(base::Deadline deadline) {
  bool ended = true;
  for (CallQueue* queue : {&connects, &lookups, &deregistrations}) ended &= queue->end(deadline);
  return ended;
}

}  // namespace linkspan::engine
