// The start of a program for glibc before 2.34 and since. The start files of a later glibc leave a
// program's constructors to glibc; before 2.34 that was for the program to do.
// Linked with --wrap=__libc_start_main.
#include <cstddef>

extern "C" {
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming): the linker's and glibc's

using Main = int (*)(int, char**, char**);
using Constructor = void (*)(int, char**, char**);
extern Constructor __init_array_start[];  // of the linker
extern Constructor __init_array_end[];
void _init();

int __real___libc_start_main(Main main, int count, char** words, Constructor init, void (*end)(),
                             void (*loaders_end)(), void* stack);

static void run_constructors(int count, char** words, char** environment) {
  _init();
  const std::ptrdiff_t constructors = __init_array_end - __init_array_start;
  for (std::ptrdiff_t i = 0; i < constructors; ++i)
    __init_array_start[i](count, words, environment);
}

/// Calls glibc's, which calls run_constructors() in each release, and no constructor besides.
int __wrap___libc_start_main(Main main, int count, char** words, Constructor, void (*end)(),
                             void (*loaders_end)(), void* stack) {
  return __real___libc_start_main(main, count, words, &run_constructors, end, loaders_end, stack);
}
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
}  // extern "C"
