#include "tools/linkspan/pair/spawned_process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <string_view>
#include <system_error>

#include "base/clock.hpp"

namespace linkspan::tool {

Result<std::unique_ptr<SpawnedProcess>> SpawnedProcess::start(
    std::string argument, base::Fd socket, const std::vector<std::string>& environment) {
  const auto name_of = [](std::string_view each) { return each.substr(0, each.find('=')); };
  std::vector<char*> variables;
  for (const std::string& each : environment)
    if (each.find('=') != std::string::npos) variables.push_back(const_cast<char*>(each.c_str()));
  for (char** each = environ; each != nullptr && *each != nullptr; ++each)
    if (std::ranges::find(environment, name_of(*each), name_of) == environment.end())
      variables.push_back(*each);
  variables.push_back(nullptr);
  const std::array<char*, 3> argv{program_invocation_short_name, argument.data(), nullptr};
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  // Also right if it is 3 already: the close-on-exec mark is taken off then (glibc 2.29).
  ::posix_spawn_file_actions_adddup2(&actions, socket.get(), kSocket);
  pid_t pid = 0;
  const int error =
      ::posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, argv.data(), variables.data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0)
    return Status(Code::system, Scope::process,
                  "posix_spawn: " + std::generic_category().message(error));
  return std::unique_ptr<SpawnedProcess>(new SpawnedProcess(pid));
}

base::Fd SpawnedProcess::take_socket() {
  (void)::fcntl(kSocket, F_SETFD, FD_CLOEXEC);
  return base::Fd(kSocket);
}

std::optional<int> SpawnedProcess::wait(Duration timeout) {
  const auto deadline = base::Deadline::in(timeout);
  while (!status_) {
    int status = 0;
    const pid_t ended = ::waitpid(pid_, &status, WNOHANG);
    if (ended == pid_ || (ended < 0 && errno != EINTR)) status_ = status;
    if (status_ || deadline.passed()) break;
    pollfd readable{.fd = pidfd_.get(), .events = POLLIN, .revents = 0};
    // Before Linux 5.3, which has no pidfd, poll only passes the time.
    (void)::poll(&readable, 1,
                 pidfd_.valid() ? deadline.left_ms() : std::min(deadline.left_ms(), 10));
  }
  return status_;
}

void SpawnedProcess::kill() {
  if (status_) return;
  (void)::kill(pid_, SIGKILL);
  (void)wait(std::chrono::seconds(20));
}

}  // namespace linkspan::tool
