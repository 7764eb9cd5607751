#include "transport/local/tally.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

namespace linkspan::transport::local {
namespace {

constexpr std::size_t kBytes = kTallyWords * sizeof(std::uint64_t);

Result<std::atomic<std::uint64_t>*> map(const base::Fd& fd) {
  void* at = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return base::Fd::from("mmap", -1).status();
  return static_cast<std::atomic<std::uint64_t>*>(at);
}

}  // namespace

Result<std::unique_ptr<Tally>> Tally::create() {
  auto fd = base::Fd::from("memfd_create",
                           ::memfd_create("linkspan-tally", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.ok()) return fd.status();
  if (::ftruncate(fd->get(), kBytes) != 0) return base::Fd::from("ftruncate", -1).status();
  if (::fcntl(fd->get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return base::Fd::from("fcntl(F_ADD_SEALS)", -1).status();
  auto words = map(*fd);
  if (!words.ok()) return words.status();
  return std::unique_ptr<Tally>(new Tally(*std::move(fd), *words));
}

Tally::Tally(base::Fd fd, std::atomic<std::uint64_t>* words) : fd_(std::move(fd)), words_(words) {
  for (std::uint32_t word = kTallyWords; word > 0; --word) free_.push_back(word - 1);
}

Tally::~Tally() { ::munmap(words_, kBytes); }

std::optional<std::uint32_t> Tally::take() {
  if (free_.empty()) return std::nullopt;
  const std::uint32_t word = free_.back();
  free_.pop_back();
  words_[word].store(0, std::memory_order_relaxed);
  return word;
}

Result<std::unique_ptr<TallyView>> TallyView::open(const base::Fd& fd) {
  struct stat facts {};
  if (::fstat(fd.get(), &facts) != 0) return base::Fd::from("fstat", -1).status();
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (facts.st_size != static_cast<off_t>(kBytes) || seals < 0 || (seals & F_SEAL_SHRINK) == 0)
    return Status(Code::corrupt, Scope::peer, "a tally that is no sealed page");
  auto words = map(fd);
  if (!words.ok()) return words.status();
  return std::unique_ptr<TallyView>(new TallyView(*words));
}

TallyView::~TallyView() { ::munmap(words_, kBytes); }

}  // namespace linkspan::transport::local
