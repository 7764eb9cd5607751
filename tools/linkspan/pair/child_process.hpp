// tools/linkspan/pair/child_process.hpp - a child process of this same program, and the requests to
// it.
//
// The child has a hidden verb. It first sends "ok"; then each request gets one reply, both short
// texts. A closed socket tells either side that the other has ended.
// Threads: externally synchronised.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fd.hpp"
#include "linkspan/status.hpp"
#include "linkspan/types.hpp"
#include "tools/linkspan/pair/remote_target.hpp"
#include "tools/linkspan/pair/spawned_process.hpp"

namespace linkspan::tool {

class ChildProcess final : public RemoteTarget {
 public:
  /// Starts the child and waits for its "ok". `environment` is SpawnedProcess::start()'s.
  static Result<std::unique_ptr<ChildProcess>> spawn(
      std::string_view verb, Duration timeout, const std::vector<std::string>& environment = {});
  /// Closes the socket, waits 3 s for the child to end, then kills it.
  ~ChildProcess() override;
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  Status send(std::string_view request) override;
  Result<std::string> receive(Duration timeout) override;
  bool unusable() const noexcept override { return unusable_; }
  pid_t pid() const noexcept { return process_->pid(); }

 private:
  explicit ChildProcess(base::Fd socket) : socket_(std::move(socket)) {}
  Status ended();

  base::Fd socket_;
  std::unique_ptr<SpawnedProcess> process_;
  bool unusable_ = false;
};

/// Runs in the child: sends "ok", then replies to requests by `handle` until the parent closes its
/// end.
void serve_parent(const std::function<Result<std::string>(const std::string& request)>& handle);

}  // namespace linkspan::tool
