#include "memory/host_backing.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "base/sealed_memory.hpp"
#include "cuda/topology.hpp"

namespace linkspan::memory {
namespace {

Status errno_status(const char* call, Where at = {}) {
  return base::Fd::from(call, -1, at).status();
}

}  // namespace

Result<std::unique_ptr<HostBacking>> HostBacking::make_shared_memory(std::uint64_t bytes) {
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  if (bytes == 0 || bytes > std::uint64_t{1} << 56)
    return Status(Code::invalid_argument, Scope::request,
                  "no shared memory can have " + std::to_string(bytes) + " bytes");
  const std::uint64_t whole = (bytes + page - 1) / page * page;
  Result<base::Fd> memfd = base::make_memfd("linkspan-shared", whole);
  if (!memfd.ok()) return memfd.status();
  // If a peer could shrink it, our next access would raise SIGBUS.
  if (::fcntl(memfd->get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return errno_status("fcntl(F_ADD_SEALS)");
  void* data = ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_SHARED, memfd->get(), 0);
  if (data == MAP_FAILED) return errno_status("mmap");
  // A hint only: kernels without huge pages for shared memory refuse it.
  (void)::madvise(data, whole, MADV_HUGEPAGE);
  return std::make_unique<HostBacking>(*std::move(memfd), data, whole);
}

std::shared_ptr<HostBacking> HostBacking::of_user(void* data, std::uint64_t bytes) {
  return std::make_shared<HostBacking>(base::Fd(), data, bytes);
}

HostBacking::~HostBacking() {
  {
    const base::MutexLock lock(pinning_);
    pin_.reset();
  }
  if (shared()) ::munmap(data_, bytes_);
}

Status HostBacking::pin(const cuda::Device& device) {
  const base::MutexLock lock(pinning_);
  if (pin_) return {};
  Result<cuda::DeviceScope> scope = device.enter();
  if (!scope.ok()) return scope.status();
  Result<cuda::HostRegistration> pin = cuda::HostRegistration::create(*scope, data_, bytes_);
  if (!pin.ok()) return pin.status();
  pin_.emplace(*std::move(pin));
  pinned_ = true;
  return {};
}

}  // namespace linkspan::memory
