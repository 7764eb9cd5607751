// Writes lines to stderr without making the caller wait.
//
// Other processes share the open file description of stderr, so O_NONBLOCK is not set. For a pipe
// and a socket a flag of the call prevents waiting. A write to a terminal, and to a pipe before
// Linux 6.4, may wait, so there only the queue's thread writes.
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <exception>
#include <memory>
#include <optional>
#include <string>

#include "base/fd.hpp"
#include "base/log.hpp"
#include "base/log_queue.hpp"
#include "base/mutex.hpp"
#include "base/wake_event.hpp"

namespace linkspan::base {
namespace {

/// Limits how long a caller waits for the queue's thread while stderr has room.
constexpr auto kHandOver = std::chrono::milliseconds(20);

/// Formats a line and cuts it to PIPE_BUF, because a pipe writes at most that many bytes in one
/// piece.
std::string line_of(Level level, std::string_view text) {
  constexpr std::string_view kCut = "...";
  std::string line = "[" + std::string(name_of(level)) + "] ";
  const bool whole = line.size() + text.size() < PIPE_BUF;
  line += whole ? text : text.substr(0, PIPE_BUF - 1 - kCut.size() - line.size());
  if (!whole) line += kCut;
  return line + '\n';
}

enum class Now : std::uint8_t { done, full, may_wait };

/// Writes the line without waiting. A stderr that is closed counts as written.
Now try_write(const std::string& line) {
  ssize_t written = ::send(STDERR_FILENO, line.data(), line.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (written < 0 && errno == ENOTSOCK) {
    struct stat kind {};
    if (::fstat(STDERR_FILENO, &kind) == 0 && S_ISREG(kind.st_mode)) {
      written = ::write(STDERR_FILENO, line.data(), line.size());
    } else {
      const iovec all{const_cast<char*>(line.data()), line.size()};
      written = ::pwritev2(STDERR_FILENO, &all, 1, -1, RWF_NOWAIT);
    }
  }
  if (written >= 0) return Now::done;
  switch (errno) {
    case EAGAIN:
      return Now::full;
    case EOPNOTSUPP:
    case ENOSYS:
    case EINVAL:
    case ESPIPE:
      return Now::may_wait;
    default:
      return Now::done;
  }
}

bool has_room() {
  pollfd err{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  return ::poll(&err, 1, 0) == 1;
}

/// Waits for room on stderr. Without a WakeEvent it does not wait, because stop() could not end the
/// wait.
class Patient final : public LogQueue::Outlet {
 public:
  void deliver(Level level, std::string_view text) override {
    const std::string line = line_of(level, text);
    for (;;) {
      pollfd wait[] = {{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0},
                       {.fd = stopped_.ok() ? stopped_->fd() : -1, .events = POLLIN, .revents = 0}};
      if (::poll(wait, 2, stopped_.ok() ? -1 : 0) < 0 && errno == EINTR) continue;
      if (wait[1].revents != 0 || wait[0].revents == 0) return;
      const Now now = try_write(line);
      if (now == Now::full) continue;
      if (now == Now::may_wait && ::write(STDERR_FILENO, line.data(), line.size()) < 0) return;
      return;
    }
  }
  void stop() noexcept override {
    if (stopped_.ok()) stopped_->wake();
  }

 private:
  const Result<WakeEvent> stopped_ = WakeEvent::create();
};

class Stderr {
 public:
  void write(Level level, std::string_view text) LINKSPAN_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (!queue_ || queue_->empty()) {
      const Now now = try_write(line_of(level, text));
      if (now == Now::done) return;
      if (!queue_) queue_.emplace(std::make_unique<Patient>());
      queue_->push(level, text);
      if (now == Now::may_wait && has_room()) (void)queue_->flush(Deadline::in(kHandOver));
      return;
    }
    queue_->push(level, text);
  }

 private:
  Mutex mutex_;  // keeps the order of lines
  std::optional<LogQueue> queue_ LINKSPAN_GUARDED_BY(mutex_);
};

}  // namespace

LogSink stderr_sink() {
  // Shared by all copies of the std::function.
  return [sink = std::make_shared<Stderr>()](Level level, std::string_view text) {
    sink->write(level, text);
  };
}

}  // namespace linkspan::base
