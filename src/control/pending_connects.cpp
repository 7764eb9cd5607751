#include "control/pending_connects.hpp"

#include <algorithm>
#include <utility>

#include "base/interrupt.hpp"

namespace linkspan::control {

Status PendingConnects::closing() {
  return {Code::canceled, Scope::process, "the Engine is closing"};
}

bool PendingConnects::close() {
  const base::MutexLock lock(mutex_);
  changed_.notify_all();
  return !std::exchange(closing_, true);
}

Status PendingConnects::await_retry(Duration pause, base::Deadline deadline,
                                    const Status& failure) {
  const base::MutexLock lock(mutex_);
  if (closing_) return closing();
  if (deadline.passed())
    return {failure.code() == Code::no_resource ? Code::no_resource : Code::unreachable,
            Scope::peer, failure.what()};
  const auto until = base::Deadline::in(std::min(pause, deadline.left()));
  return base::wait_or_interrupted(changed_, mutex_, until) ? base::interrupted() : Status();
}

Result<std::shared_ptr<Session>> PendingConnects::await(ConnectResult& result,
                                                        base::Deadline deadline,
                                                        const std::string& address) {
  const base::MutexLock lock(mutex_);
  bool interrupted = false;
  while (!result.decided) {
    result.abandoned = deadline.passed() || closing_ || interrupted;
    if (interrupted) return base::interrupted();
    if (deadline.passed())
      return Status(Code::timed_out, Scope::peer, "no answer to the handshake at " + address);
    if (closing_) return closing();
    interrupted = base::wait_or_interrupted(changed_, mutex_, deadline);
  }
  if (!result.status.ok()) return result.status;
  return result.session;
}

bool PendingConnects::decide(ConnectResult& result, const Status& status,
                             std::shared_ptr<Session> session) {
  const base::MutexLock lock(mutex_);
  if (result.abandoned) return false;
  result.decided = true;
  result.status = status;
  result.session = std::move(session);
  changed_.notify_all();
  return true;
}

}  // namespace linkspan::control
