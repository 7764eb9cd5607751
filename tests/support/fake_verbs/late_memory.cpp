// tests/support/fake_verbs/late_memory.cpp - memory of GPUs that shows what was written to it only
// after a flush.
//
// With the setting gpu_late bytes for a registration of a GPU's memory land in a shadow of it. They
// move on when a network card reads such memory of the process, from either side, or when the
// process calls cuFlushGPUDirectRDMAWrites: what hardware guarantees, and nothing before.
#include <sys/mman.h>

#include <cerrno>
#include <vector>

#include "tests/support/fake_verbs/fake_verbs.hpp"

namespace linkspan::transport::verbs::fake {
namespace {

using namespace std::chrono_literals;
constexpr std::uint64_t kRanges = 4096;
constexpr std::size_t kBounce = 65536;

struct LateRange {
  std::uint64_t begin, bytes;
};

LateRange& range_at(Segment& segment, const MrShared& mr, std::uint64_t index) {
  return reinterpret_cast<LateRange*>(segment.arena() + mr.late_ring)[index % kRanges];
}

/// Copies within the host's memory.
void move(const Host& host, std::uint64_t from, std::uint64_t to, std::uint64_t bytes) {
  std::vector<std::byte> bounce(kBounce);
  while (bytes != 0) {
    const std::uint64_t part = std::min<std::uint64_t>(bytes, kBounce);
    const iovec here{bounce.data(), part};
    const iovec source{reinterpret_cast<void*>(from), part};
    const iovec target{reinterpret_cast<void*>(to), part};
    const int pid = host.segment().pid;
    if (process_vm_readv(pid, &here, 1, &source, 1, 0) != static_cast<ssize_t>(part) ||
        process_vm_writev(pid, &here, 1, &target, 1, 0) != static_cast<ssize_t>(part))
      return;
    from += part;
    to += part;
    bytes -= part;
  }
}

/// Call under the registration's lock.
void show_ranges(Host& host, MrShared& mr) {
  for (; mr.late_head < mr.late_tail; ++mr.late_head) {
    const LateRange range = range_at(host.segment(), mr, mr.late_head);
    move(host, mr.shadow + range.begin, mr.view + range.begin, range.bytes);
  }
}

}  // namespace

bool make_late(MrShared& mr) {
  World& w = world();
  Segment& segment = own_segment();
  std::uint32_t place = 0;
  while (place < kLateMrs && segment.late[place] != 0) ++place;
  if (place == kLateMrs) return false;
  void* const shadow =
      mmap(nullptr, mr.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (shadow == MAP_FAILED) return false;
  mr.late_ring = w.arena.allocate(kRanges * sizeof(LateRange));
  if (mr.late_ring == ~std::uint64_t{0}) {
    munmap(shadow, mr.bytes);
    return false;
  }
  mr.late_head = mr.late_tail = 0;
  mr.shadow = reinterpret_cast<std::uint64_t>(shadow);
  segment.late[place] = static_cast<std::uint32_t>(&mr - segment.mrs.data());
  return true;
}

void end_late(MrShared& mr) {
  if (mr.shadow == 0) return;
  World& w = world();
  Segment& segment = own_segment();
  {
    const SharedHold lock(mr.late, 10s);
    show_ranges(*w.host, mr);
  }
  for (auto& each : segment.late)
    if (each == &mr - segment.mrs.data()) each = 0;
  w.arena.free(mr.late_ring, kRanges * sizeof(LateRange));
  munmap(reinterpret_cast<void*>(mr.shadow), mr.bytes);
  mr.shadow = 0;
}

bool add_late(Host& host, MrShared& mr, std::uint64_t begin, std::uint64_t bytes) {
  const SharedHold lock(mr.late, 1s);
  if (!lock) return false;
  if (mr.late_tail - mr.late_head == kRanges) show_ranges(host, mr);
  range_at(host.segment(), mr, mr.late_tail) = {begin, bytes};
  ++mr.late_tail;
  return true;
}

void show_late(Host& host) {
  Segment& segment = host.segment();
  for (const auto& each : segment.late) {
    const std::uint32_t index = each;
    if (index == 0) continue;
    MrShared& mr = segment.mrs[index % kMrs];
    const SharedHold lock(mr.late, 1s);
    if (lock && mr.lkey != 0 && mr.shadow != 0) show_ranges(host, mr);
  }
}

}  // namespace linkspan::transport::verbs::fake

FAKE_VERBS_EXPORT void fakeVerbsFlush() {
  using namespace linkspan::transport::verbs::fake;  // NOLINT(google-build-using-namespace)
  if (!gone() && world().host != nullptr) show_late(*world().host);
}
