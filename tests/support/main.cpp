// tests/support/main.cpp - main of every test program: the helper that argv names, else the tests.
#include <gtest/gtest.h>

#include "tests/support/process.hpp"

int main(int argc, char** argv) {
  if (const auto code = linkspan::test::run_helper(argc, argv)) return *code;
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
