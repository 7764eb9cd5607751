#include "transport/verbs/memory_keys.hpp"

#include <sys/resource.h>

#include <cerrno>

namespace linkspan::transport::verbs {
namespace {

int access_of(const Permissions& peers) noexcept {
  unsigned access = kAccessLocalWrite;
  if (peers.write) access |= kAccessRemoteWrite;
  if (peers.read) access |= kAccessRemoteRead;
  return static_cast<int>(access);
}

Result<IbvMr*> register_host(const VerbsDevice& device, const memory::Region::Facts& facts) {
  if (facts.bytes > device.attributes().max_mr_size)
    return Status(Code::unsupported, Scope::request,
                  "RDMA device " + device.name() + " registers at most " +
                      std::to_string(device.attributes().max_mr_size) + " bytes, not " +
                      std::to_string(facts.bytes));
  errno = 0;
  void* const begin = reinterpret_cast<void*>(facts.address);  // NOLINT(*-int-to-ptr)
  IbvMr* const mr =
      device.library().reg_mr(device.pd(), begin, facts.bytes, access_of(facts.peers));
  if (mr != nullptr) return mr;
  const int error = errno;
  return Status(error == ENOMEM || error == EAGAIN ? Code::no_resource : Code::system,
                Scope::request,
                registration_error(device.name(), "ibv_reg_mr", error, facts.bytes));
}

}  // namespace

std::string registration_error(const std::string& device, const char* function, int error,
                               std::uint64_t bytes) {
  std::string text = "RDMA device " + device + " did not register " + std::to_string(bytes) +
                     " bytes: " + describe_error(function, error);
  rlimit limit{};
  if ((error != ENOMEM && error != EAGAIN && error != EPERM) ||
      ::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return text;
  return text + "; this process may lock " + std::to_string(limit.rlim_cur) +
         " bytes (RLIMIT_MEMLOCK): raise it by `ulimit -l unlimited`, LimitMEMLOCK of systemd or "
         "--ulimit memlock=-1 of docker, or set verbs.devices to none";
}

Result<std::shared_ptr<const MemoryKeys>> MemoryKeys::create(
    std::span<const std::shared_ptr<VerbsDevice>> devices, const memory::Region::Facts& facts) {
  auto made = std::make_shared<MemoryKeys>();  // shared with the batches that use it
  made->all_.reserve(devices.size());
  for (const auto& device : devices) {
    const auto mr = register_host(*device, facts);
    if (!mr.ok()) return mr.status();
    made->all_.emplace_back(device, *mr);
  }
  return std::shared_ptr<const MemoryKeys>(std::move(made));
}

std::vector<std::uint32_t> MemoryKeys::rkeys() const {
  std::vector<std::uint32_t> all;
  all.reserve(all_.size());
  for (const DeviceMemory& each : all_) all.push_back(each.rkey());
  return all;
}

}  // namespace linkspan::transport::verbs
