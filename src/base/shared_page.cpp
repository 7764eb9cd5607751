#include "base/shared_page.hpp"

#include <fcntl.h>
#include <sys/mman.h>

namespace linkspan::base {
namespace {

Result<SharedPage::Word*> map(const Fd& fd, std::size_t words, int rights) {
  void* at = ::mmap(nullptr, words * sizeof(SharedPage::Word), rights, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return Fd::from("mmap", -1).status();
  return static_cast<SharedPage::Word*>(at);
}

}  // namespace

Result<struct stat> stat_sealed(const Fd& fd) {
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
    return Status(Code::corrupt, Scope::peer, "an fd that is no memfd sealed against shrinking");
  struct stat facts {};
  if (::fstat(fd.get(), &facts) != 0) return Fd::from("fstat", -1).status();
  return facts;
}

Result<SharedPage> SharedPage::create(const char* name, std::size_t words, Others others) {
  auto fd = Fd::from("memfd_create", ::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.ok()) return fd.status();
  if (::ftruncate(fd->get(), static_cast<off_t>(words * sizeof(Word))) != 0)
    return Fd::from("ftruncate", -1).status();
  auto mapped = map(*fd, words, PROT_READ | PROT_WRITE);
  if (!mapped.ok()) return mapped.status();
  SharedPage page(*std::move(fd), *mapped, words);
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL |
                    (others == Others::read ? F_SEAL_FUTURE_WRITE : 0);
  if (::fcntl(page.fd_.get(), F_ADD_SEALS, seals) != 0)
    return Fd::from("fcntl(F_ADD_SEALS)", -1).status();
  return page;
}

Result<SharedPage> SharedPage::open(const Fd& fd, std::size_t words, Others ours) {
  const auto facts = stat_sealed(fd);
  if (!facts.ok()) return facts.status();
  if (facts->st_size != static_cast<off_t>(words * sizeof(Word)))
    return Status(Code::corrupt, Scope::peer, "an fd that is no page of words");
  auto mapped = map(fd, words, ours == Others::write ? PROT_READ | PROT_WRITE : PROT_READ);
  if (!mapped.ok()) return mapped.status();
  return SharedPage(Fd(), *mapped, words);
}

SharedPage::~SharedPage() {
  if (words_ != nullptr) ::munmap(words_, count_ * sizeof(Word));
}

}  // namespace linkspan::base
