// tests/support/unlucky_threads - a preloaded library under which threads lose their cores at
// random: around reads of the clock, locks, and calls that move bytes or sleep.
//
// A thread may lose its core between any two instructions. A machine with idle cores shows that
// once in thousands of transfers; under LD_PRELOAD of this a test shows it in seconds. It changes
// no result of any call.
// UNLUCKY_SEED seeds the delays; without it the process's number does. Each thread has a number
// too, so a seed repeats the delays of each thread, not their order.
// Threads: any thread.
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <ctime>

#include "tests/support/hidden_function.hpp"

using linkspan::test::hidden;

namespace {

constexpr std::uint64_t kOneIn = 64;            // calls: one is late
constexpr std::uint64_t kLongest = 400'000;     // ns; a spinning thread of tcp sleeps after 100 us
constexpr std::uint64_t kClockReadsOneIn = 16;  // what is decided by the clock is decided here

std::atomic<std::uint64_t> threads{0};

std::uint64_t seed() {
  static const std::uint64_t value = [] {
    const char* const text = std::getenv("UNLUCKY_SEED");
    return text != nullptr ? std::strtoull(text, nullptr, 10)
                           : static_cast<std::uint64_t>(::getpid());
  }();
  return value;
}

/// Returns the next random number of this thread (splitmix64).
std::uint64_t next() {
  thread_local std::uint64_t state = seed() + (threads.fetch_add(1) << 32U);
  std::uint64_t z = state += 0x9E3779B97F4A7C15U;
  z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31U);
}

/// Delays the thread in one of `one_in` calls. Keeps errno.
void maybe_late(std::uint64_t one_in) {
  thread_local bool inside = false;  // what it calls itself may be one of ours
  if (inside) return;
  inside = true;
  const int before = errno;
  if (next() % one_in == 0) {
    const std::uint64_t ns = next() % kLongest;
    if (ns % 4 == 0) {
      ::sched_yield();
    } else {
      const timespec nap{.tv_sec = 0, .tv_nsec = static_cast<long>(ns)};
      ::syscall(SYS_nanosleep, &nap, nullptr);
    }
  }
  errno = before;
  inside = false;
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* at) noexcept {
  static std::atomic<void*> found{nullptr};
  maybe_late(kClockReadsOneIn);
  return hidden<int(clockid_t, timespec*)>(found, "clock_gettime")(clock, at);
}

int epoll_wait(int epoll, epoll_event* events, int most, int ms) {
  static std::atomic<void*> found{nullptr};
  maybe_late(kOneIn);
  const int count =
      hidden<int(int, epoll_event*, int, int)>(found, "epoll_wait")(epoll, events, most, ms);
  maybe_late(kOneIn);
  return count;
}

int ppoll(pollfd* fds, nfds_t count, const timespec* limit, const sigset_t* mask) {
  static std::atomic<void*> found{nullptr};
  maybe_late(kOneIn);
  return hidden<int(pollfd*, nfds_t, const timespec*, const sigset_t*)>(found, "ppoll")(
      fds, count, limit, mask);
}

ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  static std::atomic<void*> found{nullptr};
  maybe_late(kOneIn);
  const ssize_t sent =
      hidden<ssize_t(int, const msghdr*, int)>(found, "sendmsg")(socket, message, flags);
  maybe_late(kOneIn);
  return sent;
}

ssize_t recvmsg(int socket, msghdr* message, int flags) {
  static std::atomic<void*> found{nullptr};
  maybe_late(kOneIn);
  const ssize_t got = hidden<ssize_t(int, msghdr*, int)>(found, "recvmsg")(socket, message, flags);
  maybe_late(kOneIn);
  return got;
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  static std::atomic<void*> found{nullptr};
  const int result = hidden<int(pthread_mutex_t*)>(found, "pthread_mutex_unlock")(mutex);
  maybe_late(kOneIn);
  return result;
}

}  // extern "C"
