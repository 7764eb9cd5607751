// tests/support/process.hpp - a second process of the same test program, and calls to it.
//
// The child has the hidden verb --helper=NAME; it must answer "ok" before anything else. A Line
// then carries calls (JSON and descriptors, answered in order) and messages (bytes and descriptors,
// not answered).
// Threads: Line and Child: any thread. A helper's main runs on the child's main thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/fd_channel.hpp"
#include "base/mutex.hpp"
#include "linkspan/status.hpp"
#include "tools/linkspan/pair/spawned_process.hpp"

namespace linkspan::test {

using Json = nlohmann::json;

struct Answer {
  Json value;
  std::vector<base::Fd> fds;
};

class Line {
 public:
  explicit Line(base::Fd socket) : channel_(std::move(socket)) {}

  /// Waits until the other end has answered with a value or its Status. disconnected: it has ended.
  Result<Answer> call(const Json& request, std::vector<base::Fd> fds = {})
      LINKSPAN_EXCLUDES(mutex_);
  /// Sends a message, for next() there.
  Status tell(std::uint16_t op, std::span<const std::byte> bytes, std::span<base::Fd> fds)
      LINKSPAN_EXCLUDES(mutex_);
  /// Treats the message as if the other end had sent it.
  void hear(base::Frame message) LINKSPAN_EXCLUDES(mutex_);
  /// Returns the next message that has arrived here.
  std::optional<base::Frame> next() LINKSPAN_EXCLUDES(mutex_);

  /// Ends the conversation; the other end's serve() returns.
  void hang_up() LINKSPAN_EXCLUDES(mutex_);

  /// Answers calls by `handle` until the other end closes; `idle` runs in between, at least each
  /// millisecond, and at once again when it has answered that there is more to do.
  void serve(const std::function<Result<Answer>(const Json&, std::vector<base::Fd>)>& handle,
             const std::function<bool()>& idle);

 private:
  Status queue(const base::FrameHeader& header, std::span<const std::byte> payload,
               std::span<base::Fd> fds) LINKSPAN_REQUIRES(mutex_);
  Status pump() LINKSPAN_REQUIRES(mutex_);  // sends and receives what goes without waiting
  void wait(int milliseconds) LINKSPAN_EXCLUDES(mutex_);

  base::Mutex mutex_;
  base::FdChannel channel_ LINKSPAN_GUARDED_BY(mutex_);
  std::uint64_t calls_ LINKSPAN_GUARDED_BY(mutex_) = 0;
  std::deque<base::Frame> messages_ LINKSPAN_GUARDED_BY(mutex_);
  std::deque<base::Frame> requests_ LINKSPAN_GUARDED_BY(mutex_);
  std::map<std::uint64_t, base::Frame> answers_ LINKSPAN_GUARDED_BY(mutex_);
};

class Child {
 public:
  /// Starts the helper. NAME=VALUE in `environment` are added to ours.
  static Result<std::unique_ptr<Child>> spawn(const std::string& helper,
                                              const std::vector<std::string>& environment = {});
  /// Hangs up, waits for its end and demands that it was a good one: no sanitizer has reported.
  /// One that is stopped or was killed is only cleared away.
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  Line& line() noexcept { return line_; }
  pid_t pid() const noexcept { return process_->pid(); }
  int pidfd() const noexcept { return process_->pidfd(); }
  void signal(int number);  ///< SIGSTOP: returns when it stands.
  void kill() { ended_ = true, process_->kill(); }

 private:
  Child(std::unique_ptr<tool::SpawnedProcess> process, base::Fd socket)
      : process_(std::move(process)), line_(std::move(socket)) {}

  std::unique_ptr<tool::SpawnedProcess> process_;
  bool ended_ = false, stopped_ = false;
  Line line_;
};

/// A helper's main: serves `line` until the other end closes. Its end is the child's.
using HelperMain = void (*)(Line& line);
/// Adds a helper, at namespace scope of a test program: `const bool kFarEnd = add_helper("far_end",
/// far_end);`
bool add_helper(const char* name, HelperMain main);
/// Runs the helper that argv names, for main(). Returns its exit code; nothing if argv names none.
std::optional<int> run_helper(int argc, char** argv);

/// Returns the path of a file beside this program, such as a module that a test loads.
std::string file_beside_this_program(const std::string& name);

}  // namespace linkspan::test
