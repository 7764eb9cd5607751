#include "control/process_sessions.hpp"

#include <string>
#include <utility>

namespace linkspan::control {

Status ProcessSessions::add(std::uint64_t id, std::int64_t pid) {
  std::map<std::uint64_t, CountedSession> session;  // allocated before anything is counted
  CountedSession& counted = session[id];
  counted.process = processes_.try_emplace(pid).first;
  sessions_.merge(session);
  ProcessCount& of = counted.process->second;
  ++of.all;
  if (of.left >= most_left_)
    return {Code::no_resource, Scope::peer,
            "pid " + std::to_string(pid) + " has left " + std::to_string(of.left) +
                " sessions without a goodbye, which are kept here until it ends: no more of it"};
  if (of.all > most_)
    return {Code::no_resource, Scope::peer,
            "pid " + std::to_string(pid) + " has " + std::to_string(most_) +
                " sessions here, which is all that one process may have"};
  return {};
}

void ProcessSessions::leave(std::uint64_t id) noexcept {
  const auto found = sessions_.find(id);
  if (found != sessions_.end() && !std::exchange(found->second.left, true))
    ++found->second.process->second.left;
}

void ProcessSessions::remove(std::uint64_t id) noexcept {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  const auto [process, left] = found->second;
  sessions_.erase(found);
  process->second.left -= left ? 1 : 0;
  if (--process->second.all == 0) processes_.erase(process);
}

}  // namespace linkspan::control
