// tools/linkspan/pair/child_process.hpp - a child process of this same program, and the requests to
// it.
//
// The child is /proc/self/exe with a hidden verb; descriptor 3 is its end of a socketpair. It first
// sends "ok"; then each request gets one reply, both short texts. A closed socket tells either side
// that the other has ended.
// Threads: externally synchronised.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/fd.hpp"
#include "linkspan/status.hpp"
#include "linkspan/types.hpp"
#include "tools/linkspan/pair/remote_target.hpp"

namespace linkspan::tool {

class ChildProcess final : public RemoteTarget {
 public:
  /// Starts the child and waits for its "ok". `unset_variable` is removed from its environment.
  static Result<std::unique_ptr<ChildProcess>> spawn(const char* verb, Duration timeout,
                                                     std::string_view unset_variable = {});
  /// Closes the socket, waits 3 s for the child to end, then kills it.
  ~ChildProcess() override;
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  Status send(std::string_view request) override;
  Result<std::string> receive(Duration timeout) override;
  bool unusable() const noexcept override { return unusable_; }
  pid_t pid() const noexcept { return pid_; }

 private:
  ChildProcess(pid_t pid, base::Fd socket) : pid_(pid), socket_(std::move(socket)) {}
  Status ended();
  bool reap(Duration timeout);

  const pid_t pid_;
  base::Fd socket_;
  bool unusable_ = false, reaped_ = false;
  int wait_status_ = 0;
};

/// Runs in the child: sends "ok", then replies to requests by `handle` until the parent closes its
/// end.
void serve_parent(const std::function<Result<std::string>(const std::string& request)>& handle);

}  // namespace linkspan::tool
