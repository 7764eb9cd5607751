// tests/support/thread_calls - a preloaded library that records which calls linkspan's threads make
// that could wait, and on which file descriptors.
//
// A thread that serves several peers delays all of them if such a call waits for one peer. A test
// shows that only for the call that it made wait; this library, under LD_PRELOAD, shows all calls
// that the tests make. scripts/check_calls.py compares them with docs/threading.md.
//
// A thread is linkspan's if its name begins with "ls-" and is not that of the thread that created
// it. Calls of the simulated driver and of the tests' network plugin stand for a vendor's and are
// left out. Locks, and what libc calls itself, are not seen.
// LINKSPAN_CALLS_FILE: at its end the process writes FILE.pid, a line for each thread, call and
// kind of descriptor, separated by tabs. A call is "..., may wait" if the descriptor is blocking
// and no flag of the call prevents waiting.
// Threads: any thread.
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>

#include "tests/support/hidden_function.hpp"

using linkspan::test::hidden;

struct addrinfo;
struct statfs;

namespace {

using ThreadName = std::array<char, 16>;
using Caller = const void*;

ThreadName name_of_this_thread() {
  ThreadName name{};
  ::prctl(PR_GET_NAME, name.data());
  return name;
}

/// The name of the thread that made this one, which a new thread has until it gets its own.
thread_local ThreadName made_by{};

bool is_ours(const ThreadName& name) {
  return std::strncmp(name.data(), "ls-", 3) == 0 && name != made_by;
}

bool is_of_a_vendor(Caller caller) {
  Dl_info where{};
  if (::dladdr(caller, &where) == 0 || where.dli_fname == nullptr) return false;
  constexpr const char* kVendors[] = {"libfake_cuda", "libdriver_shim", "libnccl-net"};
  return std::ranges::any_of(
      kVendors, [&](const char* name) { return std::strstr(where.dli_fname, name) != nullptr; });
}

// ---- whose descriptor it is ------------------------------------------------------------------

constexpr int kNone = -1;  // a call without a descriptor

/// How a descriptor came to this process. Calls on one that came by SCM_RIGHTS may wait for its
/// sender until the library has seen what it is. A pair of sockets has no other process at its end.
enum class Came : std::uint8_t { no, by_a_pair, unproven, memfd, pidfd };
/// By descriptor. Higher numbers than these are not tracked.
std::array<std::atomic<Came>, 1 << 16> came{};

void set_came(int fd, Came how) {
  if (fd >= 0 && static_cast<std::size_t>(fd) < came.size())
    came[static_cast<std::size_t>(fd)].store(how, std::memory_order_relaxed);
}

Came how_came(int fd) {
  if (fd < 0 || static_cast<std::size_t>(fd) >= came.size()) return Came::no;
  return came[static_cast<std::size_t>(fd)].load(std::memory_order_relaxed);
}

void set_proven(int fd, Came how) {
  if (how_came(fd) == Came::unproven) set_came(fd, how);
}

const char* kind_of(int fd) {
  if (fd < 0) return "";
  switch (how_came(fd)) {
    case Came::unproven:
      return "received";
    case Came::memfd:
      return "received memfd";
    case Came::pidfd:
      return "received pidfd";
    case Came::by_a_pair:
      return "ours";
    case Came::no:
      break;
  }
  int domain = 0;
  socklen_t bytes = sizeof domain;
  if (::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) != 0) return "ours";
  return domain == AF_UNIX ? "unix socket" : "tcp socket";
}

void remember_received(const msghdr* message) {
  for (const cmsghdr* part = CMSG_FIRSTHDR(message); part != nullptr;
       part = CMSG_NXTHDR(const_cast<msghdr*>(message), const_cast<cmsghdr*>(part))) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t at = CMSG_LEN(0); at + sizeof(int) <= part->cmsg_len; at += sizeof(int)) {
      int fd = kNone;
      std::memcpy(&fd, reinterpret_cast<const char*>(part) + at, sizeof fd);
      set_came(fd, Came::unproven);
    }
  }
}

// ---- what was called -------------------------------------------------------------------------

struct Row {
  ThreadName thread{};
  std::array<char, 40> call{};
  const char* kind = "";
  bool operator==(const Row& o) const {
    return thread == o.thread && call == o.call && std::strcmp(kind, o.kind) == 0;
  }
};

class Rows {
 public:
  void add(const Row& row) {
    ::pthread_mutex_lock(&mutex_);
    Row* const end = rows_.data() + count_;
    if (std::find(rows_.data(), end, row) == end && count_ < rows_.size()) rows_[count_++] = row;
    ::pthread_mutex_unlock(&mutex_);
  }
  ~Rows() {
    const char* const file = std::getenv("LINKSPAN_CALLS_FILE");
    if (file == nullptr) return;
    const std::unique_ptr<char, decltype(&std::free)> lines(write_down(), &std::free);
    std::array<char, 4096> path{};
    std::snprintf(path.data(), path.size(), "%s.%d", file, ::getpid());
    if (FILE* const out = std::fopen(path.data(), "w")) {
      std::fputs(lines.get(), out);
      std::fclose(out);
    }
  }

 private:
  char* write_down() {
    char* text = nullptr;
    std::size_t bytes = 0;
    FILE* const out = ::open_memstream(&text, &bytes);
    ::pthread_mutex_lock(&mutex_);
    for (std::size_t i = 0; i < count_; ++i)
      std::fprintf(out, "%s\t%s\t%s\n", rows_[i].thread.data(), rows_[i].call.data(),
                   rows_[i].kind);
    ::pthread_mutex_unlock(&mutex_);
    std::fclose(out);
    return text;
  }

  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
  std::array<Row, 4096> rows_{};
  std::size_t count_ = 0;
};
Rows rows;

/// Writes the call down where a thread of linkspan's makes it. Keeps errno.
void note(Caller caller, const char* call, int fd, bool may_wait = false) {
  const int before = errno;
  const ThreadName thread = name_of_this_thread();
  if (is_ours(thread) && !is_of_a_vendor(caller)) {
    Row row{.thread = thread, .kind = kind_of(fd)};
    std::snprintf(row.call.data(), row.call.size(), "%s%s", call, may_wait ? ", may wait" : "");
    rows.add(row);
  }
  errno = before;
}

/// Records a call that moves bytes or connects.
void note_io(Caller caller, const char* call, int fd, int flags = 0) {
  const int before = errno;
  const bool waits = (flags & MSG_DONTWAIT) == 0 &&
                     (::syscall(SYS_fcntl, fd, F_GETFL) & static_cast<long>(O_NONBLOCK)) == 0;
  errno = before;
  note(caller, call, fd, waits);
}

const char* name_of_command(int command) {
  switch (command) {
    case F_GETFD:
    case F_SETFD:
      return "fcntl F_SETFD";
    case F_GETFL:
    case F_SETFL:
      return "fcntl F_SETFL";
    case F_DUPFD:
    case F_DUPFD_CLOEXEC:
      return "fcntl F_DUPFD";
    case F_GET_SEALS:
      return "fcntl F_GET_SEALS";
    case F_ADD_SEALS:
      return "fcntl F_ADD_SEALS";
    default:
      return "fcntl, others";
  }
}

const char* name_of_system_call(long number) {
  switch (number) {
    case SYS_pidfd_open:
      return "pidfd_open";
    case SYS_pidfd_send_signal:
      return "pidfd_send_signal";
    case SYS_futex:
      return "futex";
    case SYS_gettid:
      return nullptr;
    default:
      return "syscall, others";
  }
}

struct Start {
  void* (*function)(void*);
  void* argument;
  ThreadName maker;
};

void* begin_thread(void* packed) {
  const std::unique_ptr<Start> start(static_cast<Start*>(packed));
  made_by = start->maker;
  return start->function(start->argument);
}

}  // namespace

// Calls the hidden function of this name, whose type is that of the function around it.
#define PASS_ON(name, ...)                  \
  static std::atomic<void*> found{nullptr}; \
  return hidden<decltype(name)>(found, #name)(__VA_ARGS__)
#define CALLER __builtin_return_address(0)

extern "C" {

int pthread_create(pthread_t* id, const pthread_attr_t* attributes, void* (*function)(void*),
                   void* argument) noexcept {
  static std::atomic<void*> found{nullptr};
  auto* const start = new Start{function, argument, name_of_this_thread()};
  const int failed = hidden<decltype(pthread_create)>(found, "pthread_create")(id, attributes,
                                                                               begin_thread, start);
  if (failed != 0) delete start;
  return failed;
}

int close(int fd) {
  note(CALLER, "close", fd);
  set_came(fd, Came::no);
  PASS_ON(close, fd);
}
ssize_t read(int fd, void* to, std::size_t bytes) {
  note_io(CALLER, "read", fd);
  PASS_ON(read, fd, to, bytes);
}
ssize_t pread(int fd, void* to, std::size_t bytes, off_t at) {
  note(CALLER, "pread", fd, true);
  PASS_ON(pread, fd, to, bytes, at);
}
ssize_t write(int fd, const void* from, std::size_t bytes) {
  note_io(CALLER, "write", fd);
  PASS_ON(write, fd, from, bytes);
}
ssize_t writev(int fd, const iovec* parts, int count) {
  note_io(CALLER, "writev", fd);
  PASS_ON(writev, fd, parts, count);
}
ssize_t recv(int fd, void* to, std::size_t bytes, int flags) {
  note_io(CALLER, "recv", fd, flags);
  PASS_ON(recv, fd, to, bytes, flags);
}
ssize_t recvmsg(int fd, msghdr* message, int flags) {
  static std::atomic<void*> found{nullptr};
  note_io(CALLER, "recvmsg", fd, flags);
  const ssize_t got = hidden<decltype(recvmsg)>(found, "recvmsg")(fd, message, flags);
  if (got >= 0 && how_came(fd) != Came::by_a_pair) remember_received(message);
  return got;
}
ssize_t send(int fd, const void* from, std::size_t bytes, int flags) {
  note_io(CALLER, "send", fd, flags);
  PASS_ON(send, fd, from, bytes, flags);
}
ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  note_io(CALLER, "sendmsg", fd, flags);
  PASS_ON(sendmsg, fd, message, flags);
}
int socketpair(int domain, int type, int protocol, int* pair) noexcept {
  static std::atomic<void*> found{nullptr};
  const int failed =
      hidden<int(int, int, int, int*)>(found, "socketpair")(domain, type, protocol, pair);
  if (failed == 0)
    for (int i = 0; i < 2; ++i) set_came(pair[i], Came::by_a_pair);
  return failed;
}
int accept4(int fd, sockaddr* address, socklen_t* bytes, int flags) {
  note_io(CALLER, "accept4", fd);
  PASS_ON(accept4, fd, address, bytes, flags);
}
int connect(int fd, const sockaddr* address, socklen_t bytes) {
  note_io(CALLER, "connect", fd);
  PASS_ON(connect, fd, address, bytes);
}
int bind(int fd, const sockaddr* address, socklen_t bytes) noexcept {
  note(CALLER, "bind", fd);
  PASS_ON(bind, fd, address, bytes);
}
int listen(int fd, int most) noexcept {
  note(CALLER, "listen", fd);
  PASS_ON(listen, fd, most);
}
int fstat(int fd, struct stat* facts) noexcept {
  note(CALLER, "fstat", fd);
  PASS_ON(fstat, fd, facts);
}
int fstatfs(int fd, struct statfs* facts) noexcept {
  static std::atomic<void*> found{nullptr};
  note(CALLER, "fstatfs", fd);
  return hidden<int(int, struct statfs*)>(found, "fstatfs")(fd, facts);
}
int stat(const char* path, struct stat* facts) noexcept {
  note(CALLER, "stat", kNone);
  PASS_ON(stat, path, facts);
}
int lstat(const char* path, struct stat* facts) noexcept {
  note(CALLER, "lstat", kNone);
  PASS_ON(lstat, path, facts);
}
int fcntl(int fd, int command, ...) {
  static std::atomic<void*> found{nullptr};
  va_list rest;
  va_start(rest, command);
  void* const argument = va_arg(rest, void*);
  va_end(rest);
  note(CALLER, name_of_command(command), fd);
  const int result = hidden<int(int, int, ...)>(found, "fcntl")(fd, command, argument);
  if (command == F_DUPFD || command == F_DUPFD_CLOEXEC) set_came(result, how_came(fd));
  if (command == F_GET_SEALS && result >= 0) set_proven(fd, Came::memfd);
  return result;
}
int dup(int fd) noexcept {
  static std::atomic<void*> found{nullptr};
  note(CALLER, "dup", fd);
  const int made = hidden<int(int)>(found, "dup")(fd);
  set_came(made, how_came(fd));
  return made;
}
int ioctl(int fd, unsigned long request, ...) noexcept {
  static std::atomic<void*> found{nullptr};
  va_list rest;
  va_start(rest, request);
  void* const argument = va_arg(rest, void*);
  va_end(rest);
  note(CALLER, "ioctl", fd);
  return hidden<int(int, unsigned long, ...)>(found, "ioctl")(fd, request, argument);
}
int fsync(int fd) {
  note(CALLER, "fsync", fd);
  PASS_ON(fsync, fd);
}
int ftruncate(int fd, off_t bytes) noexcept {
  note(CALLER, "ftruncate", fd);
  PASS_ON(ftruncate, fd, bytes);
}
int open(const char* path, int flags, ...) {
  static std::atomic<void*> found{nullptr};
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  note(CALLER, "open", kNone);
  return hidden<int(const char*, int, ...)>(found, "open")(path, flags, mode);
}
FILE* fopen(const char* path, const char* mode) {
  note(CALLER, "fopen", kNone);
  PASS_ON(fopen, path, mode);
}
FILE* fopen64(const char* path, const char* mode) {
  note(CALLER, "fopen", kNone);
  PASS_ON(fopen64, path, mode);
}
int unlink(const char* path) noexcept {
  note(CALLER, "unlink", kNone);
  PASS_ON(unlink, path);
}
int remove(const char* path) noexcept {
  note(CALLER, "unlink", kNone);
  PASS_ON(remove, path);
}
int mkdir(const char* path, mode_t mode) noexcept {
  note(CALLER, "mkdir", kNone);
  PASS_ON(mkdir, path, mode);
}
ssize_t readlink(const char* path, char* to, std::size_t bytes) noexcept {
  note(CALLER, "readlink", kNone);
  PASS_ON(readlink, path, to, bytes);
}
void* mmap(void* at, std::size_t bytes, int protection, int flags, int fd, off_t offset) noexcept {
  static std::atomic<void*> found{nullptr};
  note(CALLER, "mmap", fd);
  return hidden<void*(void*, std::size_t, int, int, int, off_t)>(found, "mmap")(
      at, bytes, protection, flags, fd, offset);
}
int munmap(void* at, std::size_t bytes) noexcept {
  static std::atomic<void*> found{nullptr};
  note(CALLER, "munmap", kNone);
  return hidden<int(void*, std::size_t)>(found, "munmap")(at, bytes);
}
int madvise(void* at, std::size_t bytes, int advice) noexcept {
  static std::atomic<void*> found{nullptr};
  note(CALLER, "madvise", kNone);
  return hidden<int(void*, std::size_t, int)>(found, "madvise")(at, bytes, advice);
}
int poll(pollfd* fds, nfds_t count, int ms) {
  note(CALLER, "poll", kNone, ms != 0);
  PASS_ON(poll, fds, count, ms);
}
int ppoll(pollfd* fds, nfds_t count, const timespec* limit, const sigset_t* mask) {
  note(CALLER, "ppoll", kNone, limit == nullptr || limit->tv_sec != 0 || limit->tv_nsec != 0);
  PASS_ON(ppoll, fds, count, limit, mask);
}
int epoll_wait(int epoll, epoll_event* events, int most, int ms) {
  note(CALLER, "epoll_wait", kNone, ms != 0);
  PASS_ON(epoll_wait, epoll, events, most, ms);
}
ssize_t process_vm_readv(pid_t pid, const iovec* here, unsigned long here_count, const iovec* there,
                         unsigned long there_count, unsigned long flags) noexcept {
  note(CALLER, "process_vm_readv", kNone, true);
  PASS_ON(process_vm_readv, pid, here, here_count, there, there_count, flags);
}
ssize_t process_vm_writev(pid_t pid, const iovec* here, unsigned long here_count,
                          const iovec* there, unsigned long there_count,
                          unsigned long flags) noexcept {
  note(CALLER, "process_vm_writev", kNone, true);
  PASS_ON(process_vm_writev, pid, here, here_count, there, there_count, flags);
}
int waitid(idtype_t what, id_t id, siginfo_t* end, int options) {
  static std::atomic<void*> found{nullptr};
  const int fd = static_cast<int>(what) == P_PIDFD ? static_cast<int>(id) : kNone;
  note(CALLER, "waitid", fd, (options & WNOHANG) == 0);
  const int result = hidden<decltype(waitid)>(found, "waitid")(what, id, end, options);
  if (fd != kNone && (result == 0 || errno != EBADF)) set_proven(fd, Came::pidfd);
  return result;
}
int getaddrinfo(const char* host, const char* service, const addrinfo* hints, addrinfo** found_in) {
  static std::atomic<void*> found{nullptr};
  note(CALLER, "getaddrinfo", kNone, true);
  return hidden<int(const char*, const char*, const addrinfo*, addrinfo**)>(found, "getaddrinfo")(
      host, service, hints, found_in);
}
int nanosleep(const timespec* time, timespec* left) {
  note(CALLER, "nanosleep", kNone, true);
  PASS_ON(nanosleep, time, left);
}
int pthread_join(pthread_t id, void** result) {
  note(CALLER, "pthread_join", kNone, true);
  PASS_ON(pthread_join, id, result);
}
int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  note(CALLER, "pthread_cond_wait", kNone, true);
  PASS_ON(pthread_cond_wait, condition, mutex);
}
int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                           const timespec* until) {
  note(CALLER, "pthread_cond_wait", kNone, true);
  PASS_ON(pthread_cond_timedwait, condition, mutex, until);
}
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* until) {
  note(CALLER, "pthread_cond_wait", kNone, true);
  PASS_ON(pthread_cond_clockwait, condition, mutex, clock, until);
}
void* dlopen(const char* file, int mode) noexcept {
  static std::atomic<void*> found{nullptr};
  note(CALLER, "dlopen", kNone, true);
  return hidden<void*(const char*, int)>(found, "dlopen")(file, mode);
}
long syscall(long number, ...) noexcept {
  static std::atomic<void*> found{nullptr};
  va_list rest;
  va_start(rest, number);
  std::array<long, 6> a{};
  for (long& each : a) each = va_arg(rest, long);
  va_end(rest);
  auto* const pass_on = hidden<long(long, ...)>(found, "syscall");
  if (const char* const name = number == SYS_fcntl ? nullptr : name_of_system_call(number))
    note(CALLER, name, kNone, number == SYS_futex);
  return pass_on(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

}  // extern "C"
