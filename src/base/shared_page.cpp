#include "base/shared_page.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <string>

#include "base/sealed_memory.hpp"

namespace linkspan::base {
namespace {

Result<SharedPage::Atomic*> map(const Fd& fd, std::size_t count, int rights) {
  void* at = ::mmap(nullptr, count * sizeof(SharedPage::Atomic), rights, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return Fd::from("mmap", -1).status();
  return static_cast<SharedPage::Atomic*>(at);
}

}  // namespace

Result<SharedPage> SharedPage::create(const char* name, std::size_t count, Others others) {
  auto fd = make_memfd(name, count * sizeof(Atomic));
  if (!fd.ok()) return fd.status();
  auto mapped = map(*fd, count, PROT_READ | PROT_WRITE);
  if (!mapped.ok()) return mapped.status();
  SharedPage page(*std::move(fd), *mapped, count);
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL |
                    (others == Others::read ? F_SEAL_FUTURE_WRITE : 0);
  if (::fcntl(page.fd_.get(), F_ADD_SEALS, seals) != 0)
    return Fd::from("fcntl(F_ADD_SEALS)", -1).status();
  return page;
}

Result<SharedPage> SharedPage::open(const Fd& fd, std::size_t count, Others ours) {
  const auto memory = sealed_memory(fd);
  if (!memory.ok() || memory->bytes != count * sizeof(Atomic))
    return Status(Code::corrupt, Scope::peer,
                  "an fd that is no sealed page of words" +
                      (memory.ok() ? std::string() : ": " + memory.status().what()));
  auto mapped = map(fd, count, ours == Others::write ? PROT_READ | PROT_WRITE : PROT_READ);
  if (!mapped.ok()) return mapped.status();
  return SharedPage(Fd(), *mapped, count);
}

SharedPage::~SharedPage() {
  if (atomics_ != nullptr) ::munmap(atomics_, count_ * sizeof(Atomic));
}

}  // namespace linkspan::base
