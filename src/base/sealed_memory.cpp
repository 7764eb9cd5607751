#include "base/sealed_memory.hpp"

#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <string>

namespace linkspan::base {
namespace {

Status below_file_limit(std::uint64_t bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
      bytes <= limit.rlim_cur)
    return {};
  return {Code::system, Scope::process,
          "RLIMIT_FSIZE lets this process make files of " + std::to_string(limit.rlim_cur) +
              " bytes, and " + std::to_string(bytes) +
              " are needed: raise it (ulimit -f), which also bounds memory that processes share"};
}

}  // namespace

Result<Fd> make_memfd(const char* name, std::uint64_t bytes) {
  if (Status status = below_file_limit(bytes); !status.ok()) return status;
  auto made = Fd::from("memfd_create", ::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (made.ok() && ::ftruncate(made->get(), static_cast<off_t>(bytes)) != 0)
    return Fd::from("ftruncate", -1).status();
  return made;
}

Result<SealedMemory> sealed_memory(const Fd& fd) {
  const auto corrupt = [](const char* what) { return Status(Code::corrupt, Scope::request, what); };
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0) return corrupt("the peer's fd is no memfd");
  if ((seals & F_SEAL_SHRINK) == 0)
    return corrupt("the peer's memfd is not sealed against shrinking");
  struct statfs system {};
  if (::fstatfs(fd.get(), &system) != 0) return Fd::from("fstatfs", -1).status();
  if (system.f_type != TMPFS_MAGIC)
    return corrupt(
        "the peer's memfd is not of tmpfs: pages of hugetlb (MFD_HUGETLB) can be taken away from "
        "who maps them, use memfd_create without it");
  struct stat facts {};
  if (::fstat(fd.get(), &facts) != 0) return Fd::from("fstat", -1).status();
  return SealedMemory{.bytes = static_cast<std::uint64_t>(std::max<off_t>(facts.st_size, 0)),
                      .id = {facts.st_dev, facts.st_ino}};
}

}  // namespace linkspan::base
