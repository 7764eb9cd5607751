// tests/support/silent_pages.hpp - memory that stops to answer page faults.
//
// Threads: externally synchronised.
#pragma once

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

#include "base/fd.hpp"

namespace linkspan::test {

/// Memory that the kernel alone provides until fall_silent(): private, or that of a memfd.
class SilentPages {
 public:
  explicit SilentPages(std::size_t bytes, int memfd = -1)
      : at_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   memfd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, memfd, 0)),
        bytes_(bytes),
        drop_(memfd < 0 ? MADV_DONTNEED : MADV_REMOVE) {}
  SilentPages(const SilentPages&) = delete;
  SilentPages& operator=(const SilentPages&) = delete;
  ~SilentPages() { ::munmap(at_, bytes_); }

  void* at() const noexcept { return at_; }
  /// Drops the pages; no thread handles their faults from now on. Returns false if not root, which
  /// handling faults of another process's system calls needs.
  bool fall_silent() {
    faults_ = base::Fd(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC)));
    uffdio_api api{.api = UFFD_API, .features = 0, .ioctls = 0};
    uffdio_register range{.range = {.start = reinterpret_cast<std::uintptr_t>(at_), .len = bytes_},
                          .mode = UFFDIO_REGISTER_MODE_MISSING,
                          .ioctls = 0};
    return faults_.valid() && ::ioctl(faults_.get(), UFFDIO_API, &api) == 0 &&
           ::ioctl(faults_.get(), UFFDIO_REGISTER, &range) == 0 &&
           ::madvise(at_, bytes_, drop_) == 0;
  }

 private:
  void* const at_;
  const std::size_t bytes_;
  const int drop_;
  base::Fd faults_;
};

}  // namespace linkspan::test
