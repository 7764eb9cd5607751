#include "tools/linkspan/pair/child_process.hpp"

#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <system_error>
#include <vector>

#include "base/clock.hpp"

extern char** environ;

namespace linkspan::tool {
namespace {

using namespace std::chrono_literals;

constexpr int kChildSocket = 3;
constexpr std::size_t kMaxText = 4096;
constexpr std::string_view kOk = "ok";

base::Deadline after(Duration timeout) {
  return base::Deadline::after(base::Clock::steady(), timeout);
}

bool send_text(int socket, std::string_view text) {
  text = text.substr(0, kMaxText);
  ssize_t sent = 0;
  do {
    sent = ::send(socket, text.data(), text.size(), MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(text.size());
}

/// Empty: the other end is closed.
std::string receive_text(int socket) {
  std::array<char, kMaxText> text{};
  ssize_t got = 0;
  do {
    got = ::recv(socket, text.data(), text.size(), 0);
  } while (got < 0 && errno == EINTR);
  return got > 0 ? std::string(text.data(), static_cast<std::size_t>(got)) : std::string();
}

/// The Status that Status::to_string() made `text` of.
Status its_status(const std::string& text) {
  unsigned code = static_cast<unsigned>(Code::internal);
  while (code > 0 && !text.starts_with(std::string(name_of(static_cast<Code>(code))) + ": "))
    --code;
  if (code == 0) return {Code::internal, Scope::peer, "the second process: " + text};
  const std::size_t what = text.find(": ") + 2;
  return {static_cast<Code>(code), Scope::peer, "the second process: " + text.substr(what)};
}

}  // namespace

Result<std::unique_ptr<ChildProcess>> ChildProcess::spawn(const char* verb, Duration timeout,
                                                          std::string_view unset_variable) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return base::Fd::from("socketpair", -1).status();
  base::Fd ours(ends[0]);
  base::Fd theirs(ends[1]);

  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  // Also right if it is 3 already: the close-on-exec mark is taken off then (glibc 2.29).
  ::posix_spawn_file_actions_adddup2(&actions, theirs.get(), kChildSocket);
  std::string name = "linkspan", argument = verb;
  const std::array<char*, 3> argv{name.data(), argument.data(), nullptr};
  std::vector<char*> variables;
  const std::string unset = std::string(unset_variable) + "=";
  for (char** each = environ; each != nullptr && *each != nullptr; ++each)
    if (unset_variable.empty() || !std::string_view(*each).starts_with(unset))
      variables.push_back(*each);
  variables.push_back(nullptr);
  pid_t pid = 0;
  const int error =
      ::posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, argv.data(), variables.data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0)
    return Status(Code::system, Scope::process,
                  "posix_spawn: " + std::generic_category().message(error));
  std::unique_ptr<ChildProcess> child(new ChildProcess(pid, std::move(ours)));
  // Its end of the socket must be the child's alone, or its death would close nothing.
  theirs = base::Fd();
  if (auto hello = child->receive(timeout); !hello.ok()) return hello.status();
  return child;
}

ChildProcess::~ChildProcess() {
  socket_ = base::Fd();
  if (reap(3s)) return;
  ::kill(pid_, SIGKILL);
  (void)reap(3s);
}

Status ChildProcess::send(std::string_view request) {
  if (!socket_.valid() || !send_text(socket_.get(), request)) return ended();
  return {};
}

Result<std::string> ChildProcess::receive(Duration timeout) {
  const base::Deadline deadline = after(timeout);
  for (;;) {
    pollfd readable{.fd = socket_.get(), .events = POLLIN, .revents = 0};
    const int ready = ::poll(&readable, 1, deadline.left_ms());
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) {
      unusable_ = true;
      return Status(Code::timed_out, Scope::peer,
                    "the second process (pid " + std::to_string(pid_) + ") does not answer");
    }
    break;
  }
  const std::string text = receive_text(socket_.get());
  if (text.empty()) return ended();
  if (text.starts_with(kOk)) return text.substr(std::min(text.size(), kOk.size() + 1));
  return its_status(text);
}

Status ChildProcess::ended() {
  unusable_ = true;
  socket_ = base::Fd();
  std::string how = "closed its socket";
  if (reap(3s)) {
    if (WIFSIGNALED(wait_status_)) {
      const int number = WTERMSIG(wait_status_);
      const char* name = ::sigdescr_np(number);
      how = "was ended by signal " + std::to_string(number) + " (" +
            (name != nullptr ? name : "unknown") + ")";
    } else {
      how = "ended with code " + std::to_string(WEXITSTATUS(wait_status_));
    }
  }
  return {Code::disconnected, Scope::peer,
          "the second process (pid " + std::to_string(pid_) + ") " + how};
}

/// Waits for its end; false: it still runs. Until it is reaped its pid is no one else's.
bool ChildProcess::reap(Duration timeout) {
  if (reaped_) return true;
  const base::Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  const base::Deadline deadline = after(timeout);
  for (;;) {
    const pid_t reaped = ::waitpid(pid_, &wait_status_, WNOHANG);
    if (reaped == pid_ || (reaped < 0 && errno != EINTR)) return reaped_ = true;
    if (deadline.passed()) return false;
    pollfd readable{.fd = pidfd.get(), .events = POLLIN, .revents = 0};
    // Where the kernel knows no pidfd (before 5.3) poll only passes the time.
    (void)::poll(&readable, 1,
                 pidfd.valid() ? deadline.left_ms() : std::min(deadline.left_ms(), 10));
  }
}

void serve_parent(const std::function<Result<std::string>(const std::string& request)>& handle) {
  // What we start ourselves must not hold it open.
  (void)::fcntl(kChildSocket, F_SETFD, FD_CLOEXEC);
  const base::Fd socket(kChildSocket);
  if (!send_text(socket.get(), kOk)) return;
  for (;;) {
    const std::string request = receive_text(socket.get());
    if (request.empty()) return;
    const auto result = handle(request);
    const std::string text =
        result.ok() ? std::string(kOk) + " " + *result : result.status().to_string();
    if (!send_text(socket.get(), text)) return;
  }
}

}  // namespace linkspan::tool
