// Replaces functions that glibc 2.28 lacks, and that our code or Debian 12's static libraries call.
// Each is a hidden function of the library or program that links this file, under glibc's own name,
// so it serves that one alone, on each glibc that it is loaded beside.
//
// Threads: any thread.
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <sys/single_threaded.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "old_glibc/steady_wait.hpp"

namespace {

using ClockWait = decltype(&pthread_cond_clockwait);
constexpr unsigned kSteadyClock = 2;  // in __wrefs, as pthread_condattr_setclock() sets it

struct Search {
  std::uintptr_t address;
  dl_find_object* found;
};

/// Returns 1 and where the tables of the unwinder are, if the address is in this object.
int match(dl_phdr_info* object, std::size_t, void* data) {
  const auto& search = *static_cast<Search*>(data);
  bool is_inside = false;
  void* unwinding = nullptr;
  for (const auto* each = object->dlpi_phdr; each != object->dlpi_phdr + object->dlpi_phnum;
       ++each) {
    const std::uintptr_t start = object->dlpi_addr + each->p_vaddr;
    if (each->p_type == PT_GNU_EH_FRAME) unwinding = reinterpret_cast<void*>(start);
    if (each->p_type == PT_LOAD && search.address - start < each->p_memsz) is_inside = true;
  }
  if (!is_inside || unwinding == nullptr) return 0;
  *search.found = {};
  search.found->dlfo_eh_frame = unwinding;
  return 1;
}

int stat_at(int folder, const char* path, struct stat* out, int flags) {
  return static_cast<int>(::syscall(SYS_newfstatat, folder, path, out, flags));
}

}  // namespace

int linkspan::old_glibc::steady_wait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                     const timespec* until) {
  __atomic_fetch_or(&condition->__data.__wrefs, kSteadyClock, __ATOMIC_RELAXED);
  return ::pthread_cond_timedwait(condition, mutex, until);
}

extern "C" {

// Since 2.30. Where glibc has it, only glibc knows what is in its condition variables.
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* until) {
  static const auto own =
      reinterpret_cast<ClockWait>(::dlsym(RTLD_DEFAULT, "pthread_cond_clockwait"));
  if (own != nullptr) return own(condition, mutex, clock, until);
  if (clock != CLOCK_MONOTONIC) return EINVAL;
  return linkspan::old_glibc::steady_wait(condition, mutex, until);
}

// Since 2.30. If the time of day is set during the wait, the wait's end moves with it.
int pthread_mutex_clocklock(pthread_mutex_t* mutex, clockid_t clock,
                            const timespec* until) noexcept {
  constexpr long kSecond = 1'000'000'000;
  timespec now{};
  timespec day{};
  if (::clock_gettime(clock, &now) != 0 || ::clock_gettime(CLOCK_REALTIME, &day) != 0)
    return EINVAL;
  const long ns = day.tv_nsec + until->tv_nsec - now.tv_nsec + kSecond;  // of 0 to 3 seconds
  day.tv_sec += until->tv_sec - now.tv_sec + ns / kSecond - 1;
  day.tv_nsec = ns % kSecond;
  return ::pthread_mutex_timedlock(mutex, &day);
}

// Since 2.32. For these signals strsignal() answers with constants, in any thread.
const char* sigdescr_np(int signal) noexcept {
  if (signal <= 0 || signal > SIGSYS) return nullptr;
  return ::strsignal(signal);  // NOLINT(concurrency-mt-unsafe)
}

// Since 2.32. False: std::shared_ptr counts by atomic instructions, as before that release.
char __libc_single_threaded = 0;

// Since 2.33, where headers led these to others before. On 64 bits glibc's struct is the kernel's.
int stat(const char* path, struct stat* out) noexcept { return stat_at(AT_FDCWD, path, out, 0); }
int lstat(const char* path, struct stat* out) noexcept {
  return stat_at(AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW);
}
int fstat(int file, struct stat* out) noexcept {
  return static_cast<int>(::syscall(SYS_fstat, file, out));
}
int fstat64(int file, struct stat64* out) noexcept {
  return static_cast<int>(::syscall(SYS_fstat, file, out));
}
int fstatat(int folder, const char* path, struct stat* out, int flags) noexcept {
  return stat_at(folder, path, out, flags);
}

// Since 2.35. The unwinder of exceptions calls it, and reads dlfo_eh_frame alone.
int _dl_find_object(void* address, dl_find_object* found) noexcept {
  Search search{reinterpret_cast<std::uintptr_t>(address), found};
  return ::dl_iterate_phdr(&match, &search) == 1 ? 0 : -1;
}

// Since 2.36. A kernel that runs linkspan never refuses so few bytes.
std::uint32_t arc4random() noexcept {
  std::uint32_t out = 0;
  (void)::getentropy(&out, sizeof out);
  return out;
}

}  // extern "C"
