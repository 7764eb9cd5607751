// `linkspan ps`: what the Engines of running processes have outstanding, asked of themselves.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iostream>
#include <optional>

#include "base/options.hpp"
#include "base/untrusted_input.hpp"
#include "control/introspection_socket.hpp"
#include "tools/linkspan/command_line/verb.hpp"

namespace linkspan::tool {
namespace {

using control::IntrospectionCall;
using control::IntrospectionOp;

constexpr auto kPatience = std::chrono::seconds(2);

std::string proc(pid_t pid, const char* file) {
  return "/proc/" + std::to_string(pid) + "/" + file;
}

bool is_alive(pid_t pid) { return ::kill(pid, 0) == 0 || errno == EPERM; }

/// Removes control characters, because texts of an Engine quote its peers and a terminal must not
/// obey them.
std::string plain(const std::string& text) { return base::printable(text, true); }

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

/// Returns the reason, as far as it is visible, why a process answered on no socket.
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

class PsVerb final : public Verb {
 public:
  const char* name() const override { return "ps"; }
  const char* what() const override {
    return "What the Engines of a running process have outstanding; without PID, which processes "
           "have Engines.";
  }
  void define(Arguments& arguments) override {
    arguments.text("pid", pid_text_, "PID", "The process");
    arguments.flag("--metrics", metrics_, "Its counters, in the text format of Prometheus");
  }
  int run(const std::string& /*command*/) override {
    pid_t pid = 0;
    const char* end = pid_text_.data() + pid_text_.size();
    const auto read = std::from_chars(pid_text_.data(), end, pid);
    if (!pid_text_.empty() && (read.ec != std::errc() || read.ptr != end || pid <= 0))
      return refused(name(), Status(Code::invalid_argument, Scope::request,
                                    "\"" + pid_text_ + "\" is no process number"));
    if (metrics_ && pid == 0)
      return refused(name(), Status(Code::invalid_argument, Scope::request,
                                    "--metrics needs the PID of one process"));
    auto calls_of_pid = query(pid);
    if (!calls_of_pid.ok()) return failed(name(), calls_of_pid.status());
    return pid == 0 ? list(*calls_of_pid) : print(pid, *calls_of_pid);
  }

 private:
  /// Queries all Engines that this user may ask, or those of `pid`. Sends all queries before it
  /// waits for an answer.
  Result<std::vector<IntrospectionCall>> query(pid_t pid) const {
    const auto options = base::Options::from_environment();
    if (!options.ok()) return options.status();
    std::vector<IntrospectionCall> calls;
    for (const std::string& socket : control::introspection_sockets(options->socket_dir)) {
      auto call = IntrospectionCall::connect(socket, &closer_);
      if (!call.ok()) continue;  // the process has ended since
      if (pid != 0 ? call->pid() != pid : !may_ask(*call)) continue;
      // A forked child still has its dead parent's socket open, and no thread answers there.
      if (call->pid() != 0 && !is_alive(call->pid())) continue;
      if (!may_ask(*call))
        return Status(Code::permission_denied, Scope::request,
                      "process " + std::to_string(pid) + " is of uid " +
                          std::to_string(call->uid()) + ": ask as that user or as root");
      if (call->ask(metrics_ ? IntrospectionOp::metrics : IntrospectionOp::dump).ok())
        calls.push_back(*std::move(call));
    }
    return calls;
  }
  static bool may_ask(const IntrospectionCall& call) {
    return ::geteuid() == 0 || call.uid() == ::geteuid();
  }

  int print(pid_t pid, std::vector<IntrospectionCall>& calls) const {
    if (calls.empty()) return failed(name(), why_absent(pid));
    const auto deadline = base::Deadline::in(kPatience);
    int code = kSuccess;
    for (IntrospectionCall& call : calls) {
      auto answer = call.answer(deadline);
      if (answer.ok())
        std::cout << plain(*answer) << std::flush;
      else
        code = failed(name(), why_silent(pid, answer.status()));
    }
    return code;
  }

  int list(std::vector<IntrospectionCall>& calls) const {
    const auto deadline = base::Deadline::in(kPatience);
    if (calls.empty()) std::cout << "No process of yours has an Engine open.\n";
    for (IntrospectionCall& call : calls) {
      auto answer = call.answer(deadline);
      std::string line = answer.ok() ? answer->substr(0, answer->find('\n'))
                                     : why_silent(call.pid(), answer.status()).what();
      std::cout << std::to_string(call.pid()) + "\t" + plain(line) + "\n";
    }
    std::cout << std::flush;
    return kSuccess;
  }

  // closes connections, which any process with such a socket name may have accepted
  base::FdCloser closer_;
  std::string pid_text_;
  bool metrics_ = false;
};

}  // namespace

std::unique_ptr<Verb> ps_verb() { return std::make_unique<PsVerb>(); }

}  // namespace linkspan::tool
