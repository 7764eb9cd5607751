// tests/support/main.cpp - main of every test program: the helper that argv names, else the tests.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>

#include "tests/support/process.hpp"
#include "tests/support/sanitizers.hpp"

/// ThreadSanitizer asks it: the simulated driver joins the threads of destroyed streams when it is
/// unloaded, which is after the sanitizer has counted them.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options();
const char* __tsan_default_options() { return "report_thread_leaks=0"; }

/// LeakSanitizer (clang 14 and 16) does not see the stack and the thread_locals of a thread whose
/// id an ended thread had before. This names what the threads of an Engine that is kept to the end,
/// as the NCCL plugin's is, own there alone.
extern "C" __attribute__((visibility("default"))) const char* __lsan_default_suppressions();
const char* __lsan_default_suppressions() {
  return "leak:DataConnectionThread::collect\n"
         "leak:CRYPTO_zalloc\n";  // libcrypto's errors of a thread
}

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

}  // namespace

int main(int argc, char** argv) {
  allow_descriptors();
  // The machine's own network cards stay out of tests, but for those that ask for some.
  ::setenv("LINKSPAN_VERBS_DEVICES", "none", 0);
  if (const auto code = linkspan::test::run_helper(argc, argv)) return *code;
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
