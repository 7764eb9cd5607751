#include "tests/support/fake_verbs/shared_lock.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

namespace linkspan::transport::verbs::fake {
namespace {

using namespace std::chrono_literals;
constexpr auto kWantedFor = 5ms;
constexpr std::uint64_t kCommits = 1;
constexpr std::uint64_t kStartBits = 0xfffffffe;

std::int64_t count_of(Time time) { return time.time_since_epoch().count(); }

/// Reads a small file of /proc; false if there is none.
bool read_text(int pid, int tid, const char* name, std::array<char, 512>& text) {
  const std::string path = "/proc/" + std::to_string(pid) + "/task/" + std::to_string(tid) + name;
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const ssize_t bytes = read(fd, text.data(), text.size() - 1);
  close(fd);
  if (bytes <= 0) return false;
  text[static_cast<std::size_t>(bytes)] = '\0';
  return true;
}

/// Identifies the calling thread: its number, and the low bits of its start.
std::uint64_t this_thread() {
  thread_local const std::uint64_t self = [] {
    const auto tid = static_cast<int>(syscall(SYS_gettid));
    return static_cast<std::uint64_t>(tid) << 32 |
           (thread_start_time(getpid(), tid) << 1 & kStartBits);
  }();
  return self;
}

enum class Life { ended, stopped, runs };
Life life_of(std::uint64_t owner) {
  const int tid = static_cast<int>(owner >> 32);
  char state = 0;
  const std::uint64_t start = thread_start_time(tid, tid, &state);
  if (start == 0 || (start << 1 & kStartBits) != (owner & kStartBits)) return Life::ended;
  return state == 'T' || state == 't' ? Life::stopped : Life::runs;
}

void pause_shortly(int turn) {
  if (turn < 32) {
    sched_yield();
  } else {
    const timespec pause{0, 50'000};
    nanosleep(&pause, nullptr);
  }
}

}  // namespace

std::uint64_t thread_start_time(int pid, int tid, char* state) {
  std::array<char, 512> text{};
  if (!read_text(pid, tid, "/stat", text)) return 0;
  const char* after = std::strrchr(text.data(), ')');
  if (after == nullptr || after[1] == '\0') return 0;
  if (state != nullptr) *state = after[2];
  if (after[2] == 'Z' || after[2] == 'X') return 0;
  for (int field = 2; after != nullptr && field < 22; ++field) after = std::strchr(after + 1, ' ');
  return after != nullptr ? std::strtoull(after, nullptr, 10) : 0;
}

bool SharedLock::take_from(std::uint64_t owner, Time deadline, Pad* pad) {
  const Life life = life_of(owner);
  const std::uint64_t self = this_thread() | kCommits;
  if (life == Life::ended) return owner_.compare_exchange_strong(owner, self);
  if (life != Life::stopped || (owner & kCommits) != 0 || pad == nullptr ||
      !owner_.compare_exchange_strong(owner, self))
    return false;
  std::atomic_ref(pad->remote.iov_len).store(0);
  // It goes on meanwhile: it sees that it holds nothing, or its copy comes to an end.
  for (int turn = 0; pad->copying != 0 && life_of(owner) == Life::runs; ++turn) {
    if (now() >= deadline) {
      unlock();
      return false;
    }
    pause_shortly(turn);
  }
  return true;
}

bool SharedLock::lock(As as, Time deadline, Pad* pad) {
  const bool owns = as == As::owner;
  const std::uint64_t self = this_thread() | (owns ? kCommits : 0);
  for (int turn = 1;; ++turn) {
    std::uint64_t owner = owner_.load();
    const bool give_way = !owns && wanted_until_.load() > count_of(now());
    if (owner == 0 && !give_way && owner_.compare_exchange_strong(owner, self)) return true;
    const Time time = now();
    if (time >= deadline) return false;
    if (owns) wanted_until_.store(count_of(time + kWantedFor));
    if (turn % 64 == 0 && owner != 0 && take_from(owner, deadline, owns ? pad : nullptr)) {
      if (!owns) owner_.store(self);
      return true;
    }
    pause_shortly(turn);
  }
}

bool SharedLock::held() const { return (owner_.load() & ~kCommits) == this_thread(); }

bool SharedLock::commit() {
  const std::uint64_t commits = this_thread() | kCommits;
  std::uint64_t owner = this_thread();
  return owner_.compare_exchange_strong(owner, commits) || owner == commits;
}

void SharedLock::unlock() {
  std::uint64_t owner = owner_.load();
  if ((owner & ~kCommits) != this_thread()) return;
  if ((owner & kCommits) != 0) wanted_until_.store(0);  // another owner that waits sets it anew
  owner_.compare_exchange_strong(owner, 0);
}

}  // namespace linkspan::transport::verbs::fake
