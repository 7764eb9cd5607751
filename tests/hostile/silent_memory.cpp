// Has the victim copy from a peer whose memory never answers a page fault.
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/hostile/attack.hpp"
#include "tests/hostile/right_peer.hpp"
#include "tests/hostile/victim.hpp"

namespace linkspan::test {
namespace silent_memory {

/// Memory whose page faults no thread handles.
class Silent {
 public:
  Silent()
      : at_(::mmap(nullptr, kVictimBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                   0)),
        faults_(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC))) {
    uffdio_api api{.api = UFFD_API, .features = 0, .ioctls = 0};
    uffdio_register range{
        .range = {.start = reinterpret_cast<std::uintptr_t>(at_), .len = kVictimBytes},
        .mode = UFFDIO_REGISTER_MODE_MISSING,
        .ioctls = 0};
    made_ = faults_.valid() && ::ioctl(faults_.get(), UFFDIO_API, &api) == 0 &&
            ::ioctl(faults_.get(), UFFDIO_REGISTER, &range) == 0;
  }
  Silent(const Silent&) = delete;
  Silent& operator=(const Silent&) = delete;
  ~Silent() { ::munmap(at_, kVictimBytes); }
  bool made() const noexcept { return made_; }
  void* at() const noexcept { return at_; }

 private:
  void* const at_;
  const base::Fd faults_;
  bool made_ = false;
};

std::string why_not() {
  return Silent().made() ? "" : "needs root, to handle faults of system calls";
}

void never_answer(const Target& target, const std::stop_token& stop,
                  std::atomic<std::uint64_t>& done) {
  static Silent silent;  // outlives the Engine, which is not closed
  static RightPeer attacker(target.unix_address);
  const Region region = take(attacker.engine->register_memory(silent.at(), kVictimBytes));
  const RemoteRegion remote = take(attacker.peer.lookup(kExclusiveBait));
  for (std::uint64_t i = 0; !stop.stop_requested(); ++i) {
    const Block part = part_of(kVictimBytes, i % 64, 64);
    auto next = attacker.peer.write(region, remote, std::span(&part, 1), {.deadline = 100ms});
    if (!next.ok()) continue;
    (void)next->wait(10ms);
    ++done;
  }
}

const bool kAdded = add_attack({.name = "MemoryThatDoesNotAnswer",
                                .run = never_answer,
                                .least = 20,
                                .ending = Attack::Ending::killed,
                                .why_not = why_not});

}  // namespace silent_memory
}  // namespace linkspan::test
