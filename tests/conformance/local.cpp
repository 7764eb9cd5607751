// tests/conformance/local.cpp - the local transport of this process, tried with one kind of memory.
#include "base/process.hpp"
#include "tests/conformance/subjects.hpp"
#include "transport/local/local_transport.hpp"

namespace linkspan::test {
namespace {

Result<HereEnd::Parts> local(MemoryKind kind, bool exclusive = false) {
  const bool gpu = kind == MemoryKind::device || kind == MemoryKind::pinned;
  if (Status status = gpu ? need_gpus(1) : Status(); !status.ok()) return status;
  const std::uint64_t incarnation = base::random_u64();
  HereEnd::Parts parts;
  parts.kind = kind;
  parts.exclusive = exclusive;
  parts.registry = std::make_unique<memory::Registry>(incarnation, topology());
  auto made = transport::local::LocalTransport::create({.topology = topology(),
                                                        .registry = parts.registry.get(),
                                                        .incarnation = incarnation,
                                                        .cpu_threads = 2});
  if (!made.ok()) return made.status();
  parts.transport = *std::move(made);
  return parts;
}

}  // namespace

Result<HereEnd::Parts> local_host() { return local(MemoryKind::host); }
Result<HereEnd::Parts> local_exclusive() { return local(MemoryKind::host, true); }
Result<HereEnd::Parts> local_shared() { return local(MemoryKind::shared); }
Result<HereEnd::Parts> local_device() { return local(MemoryKind::device); }
Result<HereEnd::Parts> local_exclusive_device() { return local(MemoryKind::device, true); }
Result<HereEnd::Parts> local_pinned() { return local(MemoryKind::pinned); }

}  // namespace linkspan::test
