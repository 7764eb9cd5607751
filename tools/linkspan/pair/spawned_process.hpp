// tools/linkspan/pair/spawned_process.hpp - another process of this same program, with a socket to
// it. The tool, the benchmarks and the tests start their second processes by it.
//
// Threads: externally synchronised.
#pragma once

#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "linkspan/status.hpp"
#include "linkspan/types.hpp"

namespace linkspan::tool {

class SpawnedProcess {
 public:
  /// The descriptor of the socket in the spawned process.
  static constexpr int kSocket = 3;

  /// Starts this program with `argument` and `socket`, which is then the new process's alone. In
  /// `environment`, NAME=VALUE sets a variable and NAME removes one; the others are inherited.
  static Result<std::unique_ptr<SpawnedProcess>> start(
      std::string argument, base::Fd socket, const std::vector<std::string>& environment = {});
  /// Takes the socket, in the spawned process. Processes that it starts do not inherit it.
  static base::Fd take_socket();

  /// Kills the process if it still runs.
  ~SpawnedProcess() { kill(); }
  SpawnedProcess(const SpawnedProcess&) = delete;
  SpawnedProcess& operator=(const SpawnedProcess&) = delete;

  pid_t pid() const noexcept { return pid_; }
  int pidfd() const noexcept { return pidfd_.get(); }  ///< -1 before Linux 5.3.
  /// Waits until the process has ended. Returns its status as of waitpid(2); none: it still runs.
  std::optional<int> wait(Duration timeout);
  void kill();  ///< Sends SIGKILL and waits for the end, at most 20 s.

 private:
  explicit SpawnedProcess(pid_t pid)
      : pid_(pid), pidfd_(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))) {}

  const pid_t pid_;  // no other process has it before wait() has returned a status
  const base::Fd pidfd_;
  std::optional<int> status_;
};

}  // namespace linkspan::tool
