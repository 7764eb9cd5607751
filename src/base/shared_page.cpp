#include "base/shared_page.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <string>

#include "base/sealed_memory.hpp"

namespace linkspan::base {
namespace {

Result<SharedPage::Word*> map(const Fd& fd, std::size_t words, int rights) {
  void* at = ::mmap(nullptr, words * sizeof(SharedPage::Word), rights, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return Fd::from("mmap", -1).status();
  return static_cast<SharedPage::Word*>(at);
}

}  // namespace

Result<SharedPage> SharedPage::create(const char* name, std::size_t words, Others others) {
  auto fd = make_memfd(name, words * sizeof(Word));
  if (!fd.ok()) return fd.status();
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
  const auto memory = sealed_memory(fd);
  if (!memory.ok() || memory->bytes != words * sizeof(Word))
    return Status(Code::corrupt, Scope::peer,
                  "an fd that is no sealed page of words" +
                      (memory.ok() ? std::string() : ": " + memory.status().what()));
  auto mapped = map(fd, words, ours == Others::write ? PROT_READ | PROT_WRITE : PROT_READ);
  if (!mapped.ok()) return mapped.status();
  return SharedPage(Fd(), *mapped, words);
}

SharedPage::~SharedPage() {
  if (words_ != nullptr) ::munmap(words_, count_ * sizeof(Word));
}

}  // namespace linkspan::base
