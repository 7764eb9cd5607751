// Tests dlopen and dlclose of a library with work in between, three times: its threads are joined,
// and what it registered with the process (atexit, pthread_atfork) stays valid.
//
//   linkspan_unload liblinkspan's plugin, libnvlink_transfer
#include <dlfcn.h>
#include <linkspan/nvlink_transfer.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>

namespace {

long threads() {
  const auto found = std::filesystem::directory_iterator("/proc/self/task");
  return std::distance(begin(found), end(found));
}

/// Returns true if the library is still loaded, by its soname. An Engine that is not quiet keeps
/// its threads, which need its code.
bool stays(const char* library) { return ::dlopen(library, RTLD_NOW | RTLD_NOLOAD) != nullptr; }

/// Returns 0, or the number of what failed.
int use(const char* file, const char* function) {
  const long before = threads();
  void* const library = ::dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return std::fprintf(stderr, "%s\n", ::dlerror());
  const auto work = reinterpret_cast<int (*)()>(::dlsym(library, function));
  const int result = work == nullptr ? -1 : work();
  ::dlclose(library);
  if (result != 0) return std::fprintf(stderr, "%s of %s: %d\n", function, file, result);
  if (const long left = threads(); left > before)
    return std::fprintf(stderr, "%ld threads are left of %s\n", left - before, file);
  const pid_t child = ::fork();  // its handlers of a fork are called
  if (child == 0) ::_exit(0);
  int status = -1;
  ::waitpid(child, &status, 0);
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  for (int i = 0; i < 3; ++i) {
    if (use(argv[1], "work") != 0) return 1;
    // Its result does not matter; it asks the driver.
    void* const helper = ::dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
    if (helper == nullptr) return std::fprintf(stderr, "%s\n", ::dlerror());
    const auto transfer = reinterpret_cast<decltype(&perform_direct_transfer)>(
        ::dlsym(helper, "perform_direct_transfer"));
    if (transfer == nullptr || transfer(0, 8, 0, 8, 1, nullptr, 0, nullptr, 0, 0, 0, nullptr) == 0)
      return std::fprintf(stderr, "a transfer of nothing that exists\n");
    ::dlclose(helper);
  }
  for (const char* library : {"liblinkspan.so.0", "libnvlink_transfer.so.0"})
    if (!stays(library)) return std::fprintf(stderr, "%s was unloaded\n", library);
  std::puts("ok");
  return 0;
}
