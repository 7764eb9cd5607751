// The file form of a Store: the file holds the requests that changed it, as a client would send
// them, and each Store that has it open plays them into a Table of its own.
//
// Under flock(2) a Store first reads what others have written, then does its own request and writes
// it. A request that is cut short, by a writer's death, is cut off by the next one.
#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <utility>

#include "base/fd.hpp"
#include "control/store/request_store.hpp"
#include "control/store/table.hpp"
#include "control/store/turns.hpp"

namespace linkspan {
namespace control::store {
namespace {

using base::Deadline;

constexpr std::string_view kTitle = "linkspan store 1\n";
constexpr std::uint64_t kMaxFile = std::uint64_t{1} << 30;
constexpr std::size_t kRead = std::size_t{64} << 10;
/// The lock is held for one request; flock has no deadline of its own.
constexpr int kLockPauseMs = 1;
/// inotify wakes who waits; over a network file system it does not, hence a look at times.
constexpr int kLookMs = 100;

Status failed(const char* what, int error) {
  return {Code::system, Scope::request,
          std::string(what) + ": " + std::generic_category().message(error)};
}

/// Of the file, while it lives.
class Lock {
 public:
  explicit Lock(int fd) noexcept : fd_(fd) {}
  ~Lock() { (void)::flock(fd_, LOCK_UN); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  int fd_;
};

class FileStore final : public RequestStore {
 public:
  FileStore(std::string path, base::Fd file, Duration timeout)
      : RequestStore(timeout, ""), path_(std::move(path)), file_(std::move(file)) {}

  std::string address() const override { return "file:" + path_; }
  bool serves() const override { return false; }
  Status close(Duration /*timeout*/) override {
    closing_ = true;
    return {};
  }
  /// What is in the file is a store.
  Status look() {
    Request request;
    request.op = Op::num_keys;
    return exchange(request, answer_deadline()).status();
  }

 protected:
  Result<Message> exchange(const Request& request, Deadline deadline) override {
    const auto turn = turns_.take(deadline);
    if (closing_) return closed();
    Status locked = turn ? lock(deadline) : Status(Code::timed_out, Scope::request, "of its turn");
    if (!locked.ok()) return locked;
    const Lock held(file_.get());
    if (Status status = catch_up(); !status.ok()) return status;
    auto bytes = encode(request, Dialect::current);
    if (!bytes.ok()) return bytes.status();
    const bool keep = changes(request.op);
    if (keep && bytes->size() > kMaxFile - std::min(end_, kMaxFile))
      return Status(Code::no_resource, Scope::request, path_ + " has reached 1 GiB");
    auto answer = table_->apply(request);
    if (!answer.ok()) return answer.status();
    if (keep)
      if (Status status = write(*bytes); !status.ok()) return status;
    MessageReader reader = MessageReader::of_answer(request.op, request.keys.size(), limits());
    Buffer buffer;
    buffer.append(*answer);
    auto whole = reader.read(buffer);
    if (!whole.ok()) return whole.status();
    return std::move(reader.message());
  }

  Status await(const Keys& keys, Deadline deadline) override {
    const base::Fd watch(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
    if (watch.valid()) (void)::inotify_add_watch(watch.get(), path_.c_str(), IN_MODIFY);
    Request request;
    request.op = Op::check;
    request.keys = keys;
    for (;;) {
      auto answer = exchange(request, answer_deadline());
      if (!answer.ok()) return answer.status();
      if (answer->number == kReady) return {};
      if (deadline.passed()) return not_there(keys);
      pollfd changed{.fd = watch.get(), .events = POLLIN, .revents = 0};
      (void)::poll(&changed, watch.valid() ? 1 : 0, std::min(kLookMs, deadline.left_ms()));
      std::array<char, 4096> events{};
      while (watch.valid() && ::read(watch.get(), events.data(), events.size()) > 0) {
      }
    }
  }

 private:
  static Status closed() { return {Code::canceled, Scope::request, "the Store is closed"}; }

  Status lock(Deadline deadline) const {
    while (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK && errno != EINTR) return failed("flock", errno);
      if (deadline.passed())
        return {Code::timed_out, Scope::request, "the lock of " + path_ + " is not let go"};
      ::poll(nullptr, 0, kLockPauseMs);
    }
    return {};
  }

  /// With the lock: reads what is new, as far as it is whole, and cuts the rest off.
  Status catch_up() {
    struct stat facts {};
    if (::fstat(file_.get(), &facts) != 0) return failed("fstat", errno);
    const auto size = static_cast<std::uint64_t>(facts.st_size);
    if (size < end_ || !table_) {  // new here, or somebody has made it shorter
      table_.emplace(limits());
      end_ = 0;
    }
    if (size == end_ && size != 0) return {};
    if (size > kMaxFile) return {Code::no_resource, Scope::request, path_ + " exceeds 1 GiB"};
    if (end_ == 0)
      if (Status status = read_title(size); !status.ok()) return status;
    RequestParser parser(limits(), Dialect::current);
    std::string chunk(kRead, '\0');
    for (std::uint64_t at = end_; at < size;) {
      const ssize_t got = ::pread(file_.get(), chunk.data(), chunk.size(), static_cast<off_t>(at));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return failed("read", errno);
      if (got == 0) break;
      at += static_cast<std::uint64_t>(got);
      parser.feed(std::string_view(chunk).substr(0, static_cast<std::size_t>(got)));
      if (Status status = play(parser); !status.ok()) return status;
    }
    if (size > end_ && ::ftruncate(file_.get(), static_cast<off_t>(end_)) != 0)
      return failed("ftruncate", errno);
    return {};
  }

  Status read_title(std::uint64_t size) {
    std::string title(kTitle.size(), '\0');
    const ssize_t got = ::pread(file_.get(), title.data(), title.size(), 0);
    if (got < 0) return failed("read", errno);
    title.resize(static_cast<std::size_t>(got));
    if (title == kTitle) {
      end_ = kTitle.size();
      return {};
    }
    if (size >= kTitle.size() || !kTitle.starts_with(title)) return no_store();
    return write(kTitle);
  }

  Status play(RequestParser& parser) {
    for (;;) {
      auto request = parser.next();
      if (!request.ok() || (*request && !changes((*request)->op))) return no_store();
      if (!*request) return {};
      const auto bytes = encode(**request, Dialect::current);
      if (!table_->apply(*std::move(*request)).ok()) return no_store();
      end_ += bytes->size();
    }
  }

  /// At the end. What is not written whole has not happened.
  Status write(std::string_view bytes) {
    std::size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t wrote = ::pwrite(file_.get(), bytes.data() + done, bytes.size() - done,
                                     static_cast<off_t>(end_ + done));
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) {
        const int error = errno;
        (void)::ftruncate(file_.get(), static_cast<off_t>(end_));
        table_.reset();
        end_ = 0;
        return failed("write", error);
      }
      done += static_cast<std::size_t>(wrote);
    }
    end_ += done;
    return {};
  }

  Status no_store() {
    table_.reset();
    end_ = 0;
    return {Code::corrupt, Scope::request, path_ + " is no file of a store"};
  }

  const std::string path_;
  const base::Fd file_;
  std::atomic<bool> closing_ = false;
  Turns turns_;
  // By whose turn it is:
  std::optional<Table> table_;
  std::uint64_t end_ = 0;  // of what the Table has seen of the file
};

}  // namespace
}  // namespace control::store

Result<std::unique_ptr<Store>> open_file_store(const std::string& path, Duration timeout) {
  auto file = base::Fd::from(
      ("open " + path).c_str(),
      ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  if (!file.ok()) return file.status();
  struct stat facts {};
  if (::fstat(file->get(), &facts) != 0 || !S_ISREG(facts.st_mode))
    return Status(Code::invalid_argument, Scope::request, path + " is no file");
  if (facts.st_uid != ::geteuid())
    return Status(Code::permission_denied, Scope::request,
                  path + " belongs to uid " + std::to_string(facts.st_uid));
  auto store = std::make_unique<control::store::FileStore>(path, *std::move(file), timeout);
  if (Status status = store->look(); !status.ok()) return status;
  return std::unique_ptr<Store>(std::move(store));
}

}  // namespace linkspan
