// tests/support/main.cpp - main of every test program: the helper that argv names, else the tests.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "tests/support/process.hpp"
#include "tests/support/sanitizers.hpp"

#if defined(LINKSPAN_ADDRESS_SANITIZER)
#include <sanitizer/lsan_interface.h>
#endif

/// ThreadSanitizer asks it: the simulated driver joins the threads of destroyed streams when it is
/// unloaded, which is after the sanitizer has counted them.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options();
const char* __tsan_default_options() { return "report_thread_leaks=0"; }

#if defined(LINKSPAN_THREAD_SANITIZER)
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
ssize_t sanitized_sendmsg(int socket, const msghdr* message,
                          int flags) __asm__("__interceptor_sendmsg");

/// Keeps what sendmsg() reads from the sanitizer, which records it when the call ends. By then the
/// other side may have received the bytes and reported that over another path, and the memory may
/// rightly be filled again. To suppress the reports costs 0.2 to 0.6 ms for each word that is
/// filled.
__attribute__((visibility("default"))) ssize_t sendmsg(int socket, const msghdr* message,
                                                       int flags) {
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  const ssize_t sent = sanitized_sendmsg(socket, message, flags);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  return sent;
}
}
#endif

namespace {

/// Allows enough descriptors for tests with hundreds of Engines; a shell begins with 1,024.
void allow_descriptors() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = std::max(files.rlim_cur, std::min<rlim_t>(files.rlim_max, 65536));
  (void)::setrlimit(RLIMIT_NOFILE, &files);
}

/// Shows LeakSanitizer the stacks and the thread_locals of the threads that are kept to the end, as
/// those of the NCCL plugin's Engine are. It (clang 14 and 16) finds a thread by its kernel id, the
/// first that ever had it, and so overlooks one whose id an ended thread had before.
void show_stacks() {
#if defined(LINKSPAN_ADDRESS_SANITIZER)
  std::error_code none;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", none)) {
    if (thread.path().filename() == std::to_string(::gettid())) continue;
    // The last two words are its stack pointer and where it is; there is one word while it runs.
    std::vector<std::string> words;
    const auto limit = linkspan::base::Deadline::in(std::chrono::seconds(1));
    while (words.size() < 3 && !limit.passed()) {
      std::ifstream file(thread.path() / "syscall");
      words.assign(std::istream_iterator<std::string>(file), {});
    }
    if (words.size() < 3) continue;
    const std::uintptr_t top = std::stoull(words[words.size() - 2], nullptr, 16);
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      std::uintptr_t begin = 0, end = 0;
      if (std::sscanf(line.c_str(), "%lx-%lx", &begin, &end) == 2 && begin <= top && top < end)
        __lsan_register_root_region(reinterpret_cast<const void*>(top), end - top);
    }
  }
#endif
}

}  // namespace

int main(int argc, char** argv) {
  allow_descriptors();
  // The machine's own network cards stay out of tests, but for those that ask for some.
  ::setenv("LINKSPAN_VERBS_DEVICES", "none", 0);
  if (const auto code = linkspan::test::run_helper(argc, argv)) return *code;
  ::testing::InitGoogleTest(&argc, argv);
  const int result = RUN_ALL_TESTS();
  show_stacks();
  return result;
}
