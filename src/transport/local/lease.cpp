#include "transport/local/lease.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

namespace linkspan::transport::local {
namespace {

constexpr std::size_t kBytes = kLeaseSlots * sizeof(std::uint64_t);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace

Result<std::unique_ptr<LeaseTable>> LeaseTable::create() {
  auto fd = base::Fd::from("memfd_create",
                           ::memfd_create("linkspan-leases", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.ok()) return fd.status();
  if (::ftruncate(fd->get(), kBytes) != 0) return base::Fd::from("ftruncate", -1).status();
  void* at = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd->get(), 0);
  if (at == MAP_FAILED) return base::Fd::from("mmap", -1).status();
  std::unique_ptr<LeaseTable> table(
      new LeaseTable(*std::move(fd), static_cast<std::atomic<std::uint64_t>*>(at)));
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
  if (::fcntl(table->fd_.get(), F_ADD_SEALS, kSeals) != 0)
    return base::Fd::from("fcntl(F_ADD_SEALS)", -1).status();
  return table;
}

LeaseTable::~LeaseTable() { ::munmap(words_, kBytes); }

Result<std::uint32_t> LeaseTable::grant(std::uint64_t serial) {
  const base::MutexLock lock(mutex_);
  std::uint32_t slot = fresh_;
  if (!free_.empty()) {
    slot = free_.back();
    free_.pop_back();
  } else if (fresh_ == kLeaseSlots) {
    return Status::no_resource();
  } else {
    ++fresh_;
  }
  words_[slot].store(serial, std::memory_order_seq_cst);
  return slot;
}

void LeaseTable::revoke(std::uint32_t slot) {
  const base::MutexLock lock(mutex_);
  words_[slot].store(0, std::memory_order_seq_cst);
  free_.push_back(slot);
}

Result<std::unique_ptr<LeaseView>> LeaseView::open(const base::Fd& fd) {
  struct stat facts {};
  if (::fstat(fd.get(), &facts) != 0) return base::Fd::from("fstat", -1).status();
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (facts.st_size != static_cast<off_t>(kBytes) || seals < 0 || (seals & F_SEAL_SHRINK) == 0)
    return Status(Code::corrupt, Scope::peer, "the key's first fd is no sealed lease table");
  void* at = ::mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return base::Fd::from("mmap", -1).status();
  return std::unique_ptr<LeaseView>(
      new LeaseView(static_cast<const std::atomic<std::uint64_t>*>(at)));
}

LeaseView::~LeaseView() {
  ::munmap(const_cast<std::atomic<std::uint64_t>*>(words_), kBytes);  // NOLINT(*-const-cast)
}

}  // namespace linkspan::transport::local
