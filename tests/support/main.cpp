// tests/support/main.cpp - main of every test program: the helper that argv names, else the tests.
#include <gtest/gtest.h>

#include "tests/support/process.hpp"

/// ThreadSanitizer asks it: the simulated driver joins the threads of destroyed streams when it is
/// unloaded, which is after the sanitizer has counted them.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options();
const char* __tsan_default_options() { return "report_thread_leaks=0"; }

/// And that: it notes what sendmsg() has read when the call is over. By then the other side may
/// have received the bytes and said so by another way, and the memory may be filled anew, rightly.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_suppressions();
const char* __tsan_default_suppressions() { return "race_top:sendmsg\n"; }

int main(int argc, char** argv) {
  if (const auto code = linkspan::test::run_helper(argc, argv)) return *code;
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
