#include "tests/support/fake_verbs/segment.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/support/fake_verbs/settings.hpp"

namespace linkspan::transport::verbs::fake {
namespace {

using namespace std::chrono_literals;
constexpr std::uint64_t kMagic = 0x4c53464b56455242;

/// Who has a number; in a file that all processes map.
struct Entry {
  std::atomic<std::uint64_t> start_time;
  std::atomic<std::int32_t> pid, memfd;
};
struct Registry {
  std::atomic<std::uint32_t> last;  // number that was given, so that none is reused soon
  std::array<Entry, kHosts> entries;
};

/// Maps the file. Null: errno says why. `fd` stays open, for a lock.
Registry* map_registry(int& fd) {
  const std::string folder = verbs_folder();
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return nullptr;
  const std::string file = folder + "/hosts." + std::to_string(sizeof(Segment));
  fd = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return nullptr;
  void* memory = MAP_FAILED;
  if (ftruncate(fd, sizeof(Registry)) == 0)
    memory = mmap(nullptr, sizeof(Registry), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory != MAP_FAILED) return static_cast<Registry*>(memory);
  close(fd);
  return nullptr;
}

class OpenRegistry {
 public:
  OpenRegistry() : registry_(map_registry(fd_)) {}
  OpenRegistry(const OpenRegistry&) = delete;
  OpenRegistry& operator=(const OpenRegistry&) = delete;
  ~OpenRegistry() {
    if (registry_ == nullptr) return;
    munmap(registry_, sizeof(Registry));
    close(fd_);
  }
  Registry* get() const { return registry_; }
  /// Locks the file for the life of this; the kernel releases it for a process that ends.
  bool lock() const {
    const Time deadline = now() + 10s;
    while (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK || now() >= deadline) return false;
      const timespec pause{0, 1'000'000};
      nanosleep(&pause, nullptr);
    }
    return true;
  }

 private:
  int fd_ = -1;
  Registry* const registry_;
};

bool has_process(const Entry& entry) {
  const int pid = entry.pid;
  return pid != 0 && thread_start_time(pid, pid) == entry.start_time;
}

Segment* map_segment(int memfd) {
  void* const memory =
      mmap(nullptr, kSegmentBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, memfd, 0);
  return memory != MAP_FAILED ? static_cast<Segment*>(memory) : nullptr;
}

std::string path_of(int pid, int fd) {
  return "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
}

}  // namespace

MrShared* Segment::find(std::uint32_t key, bool remote, std::uint32_t pd, std::uint64_t address,
                        std::uint64_t bytes, unsigned access) {
  if (((key & kRemoteBit) != 0) != remote) return nullptr;
  key &= ~kRemoteBit;
  MrShared& mr = mrs[(key >> 8) % kMrs];
  if (key == 0 || mr.lkey != key || mr.pd != pd || (mr.access & access) != access) return nullptr;
  const std::uint64_t offset = address - mr.iova;
  return address >= mr.iova && offset <= mr.bytes && bytes <= mr.bytes - offset ? &mr : nullptr;
}

std::shared_ptr<Host> Host::claim() {
  const OpenRegistry registry;
  if (registry.get() == nullptr || !registry.lock()) return nullptr;
  Registry& all = *registry.get();
  std::uint32_t number = all.last;
  for (std::uint32_t tried = 0;; ++tried) {
    if (tried == kHosts) {
      errno = EMFILE;
      return nullptr;
    }
    number = (number + 1) % kHosts;
    if (number != 0 && !has_process(all.entries[number])) break;
  }
  const int memfd = memfd_create("fake_verbs", MFD_CLOEXEC);
  Segment* const segment = memfd >= 0 && ftruncate(memfd, static_cast<off_t>(kSegmentBytes)) == 0
                               ? map_segment(memfd)
                               : nullptr;
  if (segment == nullptr) {
    if (memfd >= 0) close(memfd);
    return nullptr;
  }
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);  // lets other hosts reach this memory
  segment->magic = kMagic;
  segment->pid = getpid();
  segment->number = number;
  segment->start_time = thread_start_time(getpid(), getpid());
  Entry& entry = all.entries[number];
  entry.pid = 0;
  entry.start_time = segment->start_time;
  entry.memfd = memfd;
  entry.pid = segment->pid;
  all.last = number;
  return std::make_shared<Host>(segment, memfd, -1);
}

std::shared_ptr<Host> Host::attach(std::uint32_t number) {
  const OpenRegistry registry;
  if (registry.get() == nullptr || number >= kHosts) return nullptr;
  const Entry& entry = registry.get()->entries[number];
  const int pid = entry.pid;
  const std::uint64_t start_time = entry.start_time;
  if (!has_process(entry)) return nullptr;
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  const int memfd = pidfd >= 0 ? open(path_of(pid, entry.memfd).c_str(), O_RDWR | O_CLOEXEC) : -1;
  struct stat facts {};
  Segment* segment = nullptr;
  if (memfd >= 0 && fstat(memfd, &facts) == 0 &&
      static_cast<std::uint64_t>(facts.st_size) == kSegmentBytes)
    segment = map_segment(memfd);
  if (segment != nullptr && segment->magic == kMagic && segment->pid == pid &&
      segment->start_time == start_time && segment->number == number)
    return std::make_shared<Host>(segment, memfd, pidfd);
  if (segment != nullptr) munmap(segment, kSegmentBytes);
  if (memfd >= 0) close(memfd);
  if (pidfd >= 0) close(pidfd);
  return nullptr;
}

Host::~Host() {
  for (const auto& [key, fd] : pipes_) close(fd);
  munmap(&segment_, kSegmentBytes);
  close(memfd_);
  if (pidfd_ >= 0) close(pidfd_);
}

bool Host::alive() const {
  if (segment_.closed != 0) return false;
  if (own()) return true;
  pollfd ended{pidfd_, POLLIN, 0};
  return ::poll(&ended, 1, 0) == 0;
}

void Host::notify(std::int32_t fd, std::uint32_t key, std::uint64_t event) {
  if (fd <= 0) return;
  fd -= 1;
  int pipe = fd;
  if (!own()) {
    const std::lock_guard lock(mutex_);
    const std::uint64_t name = static_cast<std::uint64_t>(key) << 32 | static_cast<unsigned>(fd);
    const auto found = pipes_.find(name);
    if (found != pipes_.end()) {
      pipe = found->second;
    } else {
      pipe = open(path_of(segment_.pid, fd).c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
      if (pipe < 0) return;
      pipes_.emplace(name, pipe);
    }
  }
  // A pipe that is full has more events than there are queues to tell of.
  [[maybe_unused]] const ssize_t written = write(pipe, &event, sizeof event);
}

void Host::wake(std::uint32_t context) {
  ContextShared& shared = segment_.contexts[context % kContexts];
  shared.wake.fetch_add(1);
  if (shared.sleeping.load() != 0)
    syscall(SYS_futex, &shared.wake, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

int Host::copy(const iovec* local, std::size_t count, std::uint64_t remote, std::size_t bytes,
               bool write, const SharedLock& lock, Pad& pad) const {
  if (bytes == 0) return 0;
  const std::atomic_ref length(pad.remote.iov_len);
  pad.remote.iov_base = reinterpret_cast<void*>(remote);
  length = bytes;
  pad.copying = 1;
  int error = EAGAIN;
  if (lock.held()) {
    const ssize_t copied = write ? process_vm_writev(segment_.pid, local, count, &pad.remote, 1, 0)
                                 : process_vm_readv(segment_.pid, local, count, &pad.remote, 1, 0);
    error = copied < 0 ? errno : 0;
    if (error == EFAULT || (error == 0 && copied != static_cast<ssize_t>(bytes))) {
      error = 0;
      if (length != bytes)
        error = EAGAIN;
      else
        counters().orphans.fetch_add(1);
    }
  }
  pad.copying = 0;
  return error;
}

std::uint64_t Arena::allocate(std::uint64_t bytes) {
  bytes = (bytes + 63) & ~std::uint64_t{63};
  for (auto each = free_.begin(); each != free_.end(); ++each) {
    if (each->second < bytes) continue;
    const auto [offset, size] = *each;
    free_.erase(each);
    if (size > bytes) free_.emplace(offset + bytes, size - bytes);
    return offset;
  }
  return ~std::uint64_t{0};
}

void Arena::free(std::uint64_t offset, std::uint64_t bytes) {
  bytes = (bytes + 63) & ~std::uint64_t{63};
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && offset + bytes == next->first) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  free_.emplace(offset, bytes);
}

}  // namespace linkspan::transport::verbs::fake
