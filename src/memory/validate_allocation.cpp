#include "memory/validate_allocation.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

namespace linkspan::memory {

bool is_mapped(std::uint64_t address, std::uint64_t bytes) noexcept {
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t before = address % page;
  // Computed as an integer: the address may not belong to any object, for which pointer arithmetic
  // would be undefined.
  void* first = reinterpret_cast<void*>(address - before);  // NOLINT(performance-no-int-to-ptr)
  // MS_ASYNC writes nothing; it only walks the mappings and returns ENOMEM for a hole.
  return ::msync(first, before + bytes, MS_ASYNC) == 0 || errno != ENOMEM;
}

Status freed_early() {
  return {Code::unreachable, Scope::request,
          "its owner has freed or unmapped this memory without Engine::deregister or "
          "Engine::invalidate"};
}

Status validate_allocation(const cuda::Topology& topology, std::uint64_t address,
                           std::uint64_t buffer) {
  const auto now =
      topology.identify(reinterpret_cast<void*>(address));  // NOLINT(performance-no-int-to-ptr)
  if (!now.ok()) return now.status();
  return now->kind == MemoryKind::device && now->buffer_id == buffer ? Status() : freed_early();
}

}  // namespace linkspan::memory
