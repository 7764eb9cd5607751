#include "transport/verbs/memory_keys.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "cuda/dma_buf.hpp"

namespace linkspan::transport::verbs {
namespace {

int access_of(const Permissions& peers) noexcept {
  unsigned access = kAccessLocalWrite;
  if (peers.write) access |= kAccessRemoteWrite;
  if (peers.read) access |= kAccessRemoteRead;
  return static_cast<int>(access);
}

Result<IbvMr*> register_host(const VerbsDevice& device, const memory::Region::Facts& facts) {
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

/// Exports the host's pages that have the memory.
Result<base::Fd> export_pages(const memory::Region::Facts& facts, const cuda::Device& gpu) {
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t begin = facts.address / page * page;
  const std::uint64_t bytes = (facts.address - begin + facts.bytes + page - 1) / page * page;
  const auto scope = gpu.enter();
  return scope.ok() ? cuda::export_dma_buf(*scope, begin, bytes) : scope.status();
}

/// Registers memory of a GPU by DMA-BUF, else by the kernel module nvidia-peermem.
Result<IbvMr*> register_gpu(const VerbsDevice& device, const memory::Region::Facts& facts,
                            const Result<base::Fd>& dma_buf) {
  const Library& library = device.library();
  std::string why;
  if (!dma_buf.ok()) {
    why = dma_buf.status().what();
  } else if (library.reg_dmabuf_mr == nullptr) {
    why = "libibverbs is older than 34";
  } else {
    const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    errno = 0;
    IbvMr* const mr = library.reg_dmabuf_mr(device.pd(), facts.address % page, facts.bytes,
                                            facts.address, dma_buf->get(), access_of(facts.peers));
    if (mr != nullptr) return mr;
    why = describe_error("ibv_reg_dmabuf_mr", errno);
  }
  auto direct = register_host(device, facts);
  if (direct.ok()) return direct;
  return Status(Code::unsupported, Scope::request,
                "RDMA device " + device.name() + " reaches no memory of this GPU: DMA-BUF: " + why +
                    "; nvidia-peermem: " + direct.status().what());
}

Result<IbvMr*> register_with(const VerbsDevice& device, const memory::Region::Facts& facts,
                             const cuda::Device* gpu, const Result<base::Fd>& dma_buf) {
  const std::uint64_t most = device.attributes().max_mr_size;
  if (facts.bytes > most)
    return Status(Code::unsupported, Scope::request,
                  "RDMA device " + device.name() + " registers at most " + std::to_string(most) +
                      " bytes, not " + std::to_string(facts.bytes));
  return gpu != nullptr ? register_gpu(device, facts, dma_buf) : register_host(device, facts);
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
    std::span<const std::shared_ptr<VerbsDevice>> devices, const memory::Region::Facts& facts,
    const cuda::Device* gpu, decltype(nearness)* nearness_of) {
  Result<base::Fd> dma_buf = base::Fd();
  if (gpu != nullptr) dma_buf = export_pages(facts, *gpu);
  auto made = std::make_shared<MemoryKeys>();  // shared with the batches that use it
  made->all_.reserve(devices.size());
  Status refused;
  bool any = false;
  for (const auto& device : devices) {
    const auto mr = register_with(*device, facts, gpu, dma_buf);
    made->all_.emplace_back();
    made->near_.push_back(nearness_of(*device, gpu));
    if (mr.ok()) {
      made->nearest_ = std::max(made->nearest_, made->near_.back());
      made->all_.back().emplace(device, *mr);
      any = true;
      continue;
    }
    if (refused.ok()) refused = mr.status();
    if (mr.status().code() == Code::no_resource) return refused;  // as it would be elsewhere
  }
  if (!any) return refused;
  return std::shared_ptr<const MemoryKeys>(std::move(made));
}

std::vector<std::uint64_t> MemoryKeys::rkeys() const {
  std::vector<std::uint64_t> all;
  all.reserve(all_.size());
  for (const auto& each : all_) all.push_back(each ? each->rkey() : kNoKey);
  return all;
}

}  // namespace linkspan::transport::verbs
