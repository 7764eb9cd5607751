#include "tools/linkspan/ps/engines.hpp"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <utility>

#include "base/options.hpp"

namespace linkspan::tool {
namespace {

using control::IntrospectionCall;

std::string proc(pid_t pid, const char* file) {
  return "/proc/" + std::to_string(pid) + "/" + file;
}

bool is_alive(pid_t pid) { return ::kill(pid, 0) == 0 || errno == EPERM; }

bool is_stopped(pid_t pid) {
  std::ifstream file(proc(pid, "status"));
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("State:")) return line.find_first_of("Tt", 6) == 7;
  return false;
}

Status why_silent(pid_t pid, const Status& status) {
  if (status.code() != Code::timed_out || !is_stopped(pid)) return status;
  return {Code::timed_out, Scope::peer, "it is stopped (SIGSTOP, or a debugger)"};
}

}  // namespace

Result<std::vector<Engines::Answer>> Engines::ask(control::IntrospectionOp question,
                                                  const Which& which) const {
  const auto options = base::Options::from_environment();
  if (!options.ok()) return options.status();
  std::vector<IntrospectionCall> calls;
  for (const std::string& socket : control::introspection_sockets(options->socket_dir)) {
    auto call = IntrospectionCall::connect(socket, &closer_);
    if (!call.ok()) continue;  // the process has ended since
    const bool may_ask =
        call->uid() == ::geteuid() || (::geteuid() == 0 && (which.any_uid || which.pid != 0));
    if (which.pid != 0 ? call->pid() != which.pid : !may_ask) continue;
    // A forked child still has its dead parent's socket open, and no thread answers there.
    if (call->pid() != 0 && !is_alive(call->pid())) continue;
    if (!may_ask)
      return Status(Code::permission_denied, Scope::request,
                    "process " + std::to_string(which.pid) + " is of uid " +
                        std::to_string(call->uid()) + ": ask as that user or as root");
    if (call->ask(question).ok()) calls.push_back(*std::move(call));
  }
  const auto deadline = base::Deadline::in(kPatience);
  std::vector<Answer> answers;
  for (IntrospectionCall& call : calls) {
    Answer answer{.pid = call.pid(), .text = call.answer(deadline)};
    if (!answer.text.ok()) answer.text = why_silent(call.pid(), answer.text.status());
    answers.push_back(std::move(answer));
  }
  return answers;
}

Status why_absent(pid_t pid) {
  const std::string who = "process " + std::to_string(pid);
  if (!is_alive(pid)) return {Code::not_found, Scope::request, "there is no " + who};
  struct stat facts {};
  if (::stat(proc(pid, "").c_str(), &facts) == 0 && ::geteuid() != 0 && facts.st_uid != ::geteuid())
    return {Code::permission_denied, Scope::request,
            who + " is of uid " + std::to_string(facts.st_uid) + ": ask as that user or as root"};
  struct stat ours {
  }, theirs{};
  if (::stat("/proc/self/ns/net", &ours) == 0 &&
      ::stat(proc(pid, "ns/net").c_str(), &theirs) == 0 && ours.st_ino != theirs.st_ino)
    return {Code::not_found, Scope::request,
            who +
                " is in another network namespace: set LINKSPAN_SOCKET_DIR to its folder of "
                "sockets, as it is seen here, or nsenter -m -n -t " +
                std::to_string(pid) + " linkspan ps " + std::to_string(pid)};
  return {Code::not_found, Scope::request, who + " has no Engine open"};
}

}  // namespace linkspan::tool
