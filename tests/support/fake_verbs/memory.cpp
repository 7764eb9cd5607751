// tests/support/fake_verbs/memory.cpp - protection domains and registrations.
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "cuda/driver_abi.hpp"
#include "tests/support/fake_verbs/fake_verbs.hpp"

namespace linkspan::transport::verbs::fake {
namespace {

using namespace std::chrono_literals;
constexpr std::uint64_t kPage = 4096;
constexpr unsigned kKnownAccess = kAccessLocalWrite | kAccessRemoteWrite | kAccessRemoteRead |
                                  kAccessRemoteAtomic | 0x3ff0'0000U;  // those that are optional

/// Whether all of the range is mapped so that it can be pinned.
bool can_pin(std::uint64_t begin, std::uint64_t end, bool write) {
  FILE* const maps = std::fopen("/proc/self/maps", "re");
  if (maps == nullptr) return false;
  char line[512];
  while (begin < end && std::fgets(line, sizeof line, maps) != nullptr) {
    char* after = nullptr;
    const std::uint64_t from = std::strtoull(line, &after, 16);
    if (*after != '-') continue;  // the rest of a long line
    const std::uint64_t to = std::strtoull(after + 1, &after, 16);
    if (to <= begin) continue;
    if (from > begin || after[1] != 'r' || (write && after[2] != 'w')) break;
    begin = to;
  }
  std::fclose(maps);
  return begin >= end;
}

/// Where a registration's memory is, and what was mapped for it.
struct View {
  std::uint64_t at;
  void* mapping = nullptr;
  std::size_t bytes = 0;
};

/// Maps a part of a memfd, which stays as long as it is mapped.
std::optional<View> map_file(int fd, std::uint64_t offset, std::uint64_t bytes) {
  struct stat facts {};
  const off_t begin = lseek(fd, 0, SEEK_CUR);
  if (begin < 0 || fstat(fd, &facts) != 0 || facts.st_size < 0) return std::nullopt;
  const auto size = (static_cast<std::uint64_t>(facts.st_size) + kPage - 1) / kPage * kPage;
  const auto base = static_cast<std::uint64_t>(begin);
  if (base > size || offset > size - base || bytes > size - base - offset) return std::nullopt;
  const std::uint64_t at = base + offset, page = at & ~(kPage - 1);
  View view{.at = 0, .mapping = nullptr, .bytes = bytes + (at - page)};
  view.mapping =
      mmap(nullptr, view.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(page));
  if (view.mapping == MAP_FAILED) return std::nullopt;
  view.at = reinterpret_cast<std::uint64_t>(view.mapping) + (at - page);
  return view;
}

/// Maps memory of the simulated GPUs, as nvidia-peermem gives it to a network card.
std::optional<View> map_gpu_memory(std::uint64_t address, std::uint64_t bytes) {
  const char* const file = std::getenv("LINKSPAN_CUDA_LIBRARY");
  void* const driver = file != nullptr ? dlopen(file, RTLD_NOW | RTLD_NOLOAD) : nullptr;
  if (driver == nullptr) return std::nullopt;
  const auto get = reinterpret_cast<cuda::GetProcAddress>(dlsym(driver, "cuGetProcAddress_v2"));
  void* entry = nullptr;
  cuda::CUdriverProcAddressQueryResult found{};
  int fd = -1;
  if (get != nullptr && get("fakeCudaOpenMemory", &entry, 12000, 0, &found) == cuda::CUDA_SUCCESS &&
      entry != nullptr)
    fd = reinterpret_cast<int (*)(std::uint64_t, std::uint64_t)>(entry)(address, bytes);
  dlclose(driver);
  if (fd < 0) return std::nullopt;
  const auto view = map_file(fd, 0, bytes);
  close(fd);
  return view;
}

/// What a call of reg_mr or the like asks for.
struct Wish {
  std::uint64_t address, bytes, iova;
  unsigned access;
};

/// Returns 0 or an errno.
int check(const ContextObject& context, const Wish& wish) {
  const Settings& s = settings();
  counters().registrations.fetch_add(1);
  if (gone() || context.lost()) return EIO;
  const bool remote_writes = (wish.access & (kAccessRemoteWrite | kAccessRemoteAtomic)) != 0;
  if (wish.bytes == 0 || wish.bytes > static_cast<std::uint64_t>(s.max_mr_size) ||
      wish.address > UINT64_MAX - wish.bytes || wish.iova > UINT64_MAX - wish.bytes ||
      (wish.access & ~kKnownAccess) != 0 ||
      (remote_writes && (wish.access & kAccessLocalWrite) == 0))
    return EINVAL;
  return is_nth(settings().fail_registration) ? ENOMEM : 0;
}

IbvMr* fail(int error) {
  errno = error;
  return nullptr;
}

void unmap(const View& view) {
  if (view.mapping != nullptr) munmap(view.mapping, view.bytes);
}

/// Enters the registration into the table. Null: there is no room.
IbvMr* add(IbvPd* pd, const Wish& wish, const View& view) {
  World& w = world();
  Segment& segment = own_segment();
  const std::lock_guard lock(w.mutex);
  const auto limit = static_cast<std::uint64_t>(settings().memlock);
  std::uint32_t tried = 0;
  do {
    w.last_mr = (w.last_mr + 1) % kMrs;
  } while ((w.last_mr == 0 || segment.mrs[w.last_mr].lkey != 0) && ++tried < kMrs);
  if (tried >= kMrs || (limit != 0 && wish.bytes > limit - std::min(limit, w.registered))) {
    unmap(view);
    return fail(ENOMEM);
  }
  w.registered += wish.bytes;
  MrShared& shared = segment.mrs[w.last_mr];
  shared.pd = pd->handle;
  shared.access = wish.access;
  shared.iova = wish.iova;
  shared.bytes = wish.bytes;
  shared.view = view.at;
  auto* const made = new MrObject;
  made->context = pd->context;
  made->pd = pd;
  made->addr = reinterpret_cast<void*>(wish.address);
  made->length = wish.bytes;
  made->handle = w.last_mr;
  made->lkey = w.last_mr << 8 | (++w.last_serial & 0xff);
  made->rkey = made->lkey | kRemoteBit;
  made->mapping = view.mapping;
  made->mapping_bytes = view.bytes;
  if (view.mapping != nullptr && settings().gpu_late != 0) make_late(shared);
  shared.lkey = made->lkey;
  static_cast<PdObject*>(pd)->users.fetch_add(1);
  return made;
}

}  // namespace

FAKE_VERBS_EXPORT IbvPd* ibv_alloc_pd(IbvContext* context) {
  if (gone() || object(context).lost()) {
    errno = EIO;
    return nullptr;
  }
  World& w = world();
  const std::lock_guard lock(w.mutex);
  auto* const made = new PdObject;
  made->context = context;
  made->handle = ++w.last_pd;
  return made;
}

FAKE_VERBS_EXPORT int ibv_dealloc_pd(IbvPd* pd) {
  auto* const p = static_cast<PdObject*>(pd);
  if (p->users != 0) return EBUSY;
  delete p;
  return 0;
}

FAKE_VERBS_EXPORT IbvMr* ibv_reg_mr_iova2(IbvPd* pd, void* addr, std::size_t length,
                                          std::uint64_t iova, unsigned access) {
  const Wish wish{reinterpret_cast<std::uint64_t>(addr), length, iova, access};
  if (const int error = check(object(pd->context), wish); error != 0) return fail(error);
  if (can_pin(wish.address, wish.address + wish.bytes, (access & kAccessLocalWrite) != 0))
    return add(pd, wish, {.at = wish.address});
  std::optional<View> gpu;
  if (settings().peermem != 0) gpu = map_gpu_memory(wish.address, wish.bytes);
  return gpu ? add(pd, wish, *gpu) : fail(EFAULT);
}

FAKE_VERBS_EXPORT IbvMr* ibv_reg_mr(IbvPd* pd, void* addr, std::size_t length, int access) {
  return ibv_reg_mr_iova2(pd, addr, length, reinterpret_cast<std::uint64_t>(addr),
                          static_cast<unsigned>(access));
}

FAKE_VERBS_EXPORT IbvMr* ibv_reg_dmabuf_mr(IbvPd* pd, std::uint64_t offset, std::size_t length,
                                           std::uint64_t iova, int fd, int access) {
  const Wish wish{0, length, iova, static_cast<unsigned>(access)};
  if (const int error = check(object(pd->context), wish); error != 0) return fail(error);
  if (settings().dmabuf == 0) return fail(EOPNOTSUPP);
  if (offset > UINT64_MAX - length || (offset ^ iova) % kPage != 0) return fail(EINVAL);
  const auto view = map_file(fd, offset, length);
  return view ? add(pd, wish, *view) : fail(EINVAL);
}

FAKE_VERBS_EXPORT int ibv_dereg_mr(IbvMr* mr) {
  auto* const m = static_cast<MrObject*>(mr);
  ContextObject& context = object(mr->context);
  if (world().forked) return EIO;
  wait_to_destroy();
  Segment& segment = own_segment();
  segment.mrs[m->handle].lkey = 0;
  {
    // The device's thread and those of peers look the key up for each piece.
    const Turns::Call call(context.turns);
    for (const QpObject* qp : context.qps)
      if (const SharedHold landing(qp->shared->landing, 10s, peers_pad(*qp)); !landing)
        return EBUSY;
  }
  counters().deregistrations.fetch_add(1);
  static_cast<PdObject*>(mr->pd)->users.fetch_sub(1);
  World& w = world();
  const std::lock_guard lock(w.mutex);
  end_late(segment.mrs[m->handle]);
  if (m->mapping != nullptr) munmap(m->mapping, m->mapping_bytes);
  w.registered -= m->length;
  delete m;
  return 0;
}

}  // namespace linkspan::transport::verbs::fake
