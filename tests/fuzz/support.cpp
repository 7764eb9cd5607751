#include "tests/fuzz/support.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "base/process.hpp"
#include "transport/local/completion_flags.hpp"
#include "transport/local/region_liveness.hpp"

namespace linkspan::fuzz {
namespace {

base::Fd memory(off_t bytes, int seals) {
  base::Fd fd(::memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  demand(fd.valid() && ::ftruncate(fd.get(), bytes) == 0, "no memfd");
  demand(seals == 0 || ::fcntl(fd.get(), F_ADD_SEALS, seals) == 0, "no seals");
  return fd;
}

}  // namespace

base::Fd make_fd(std::uint8_t kind) {
  // Made once: what is sent is a duplicate.
  static const auto leases = [] {
    auto table = transport::local::RegionLivenessTable::create();
    demand(table.ok(), "no leases");
    for (std::uint64_t serial = 1; serial <= 8; ++serial)
      demand((*table)->grant(serial).ok(), "no lease");
    return *std::move(table);
  }();
  switch (static_cast<FdKind>(kind % static_cast<std::uint8_t>(FdKind::kinds))) {
    case FdKind::event:
      return base::Fd(::eventfd(1, EFD_CLOEXEC));
    case FdKind::memory:
      return memory(4096, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    case FdKind::unsealed_memory:
      return memory(4096, 0);
    case FdKind::growing_memory:
      return memory(4096, F_SEAL_SHRINK);
    case FdKind::empty_memory:
      return memory(0, F_SEAL_SHRINK);
    case FdKind::leases:
      return base::Fd(::dup(leases->fd()->get()));
    case FdKind::tally:
      return memory(transport::local::kCompletionFlags * 8, F_SEAL_SHRINK | F_SEAL_GROW);
    case FdKind::folder:
      return base::Fd(::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    case FdKind::socket:
      return base::Fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    case FdKind::pidfd:
      if (auto own = base::open_pidfd(::getpid()); own.ok()) return *std::move(own);
      found("no pidfd");
    case FdKind::file:
    case FdKind::kinds:
      break;
  }
  return base::Fd(::open("/dev/null", O_RDWR | O_CLOEXEC));
}

std::size_t open_fds() {
  DIR* const folder = ::opendir("/proc/self/fd");
  demand(folder != nullptr, "no /proc");
  std::size_t count = 0;
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

void found(const char* what) {
  std::fprintf(stderr, "FOUND: %s\n", what);
  std::abort();
}

}  // namespace linkspan::fuzz
