// LocalEndpoint: collects the facts for a route, and explains it.
#include <string>

#include "transport/local/endpoint.hpp"

namespace linkspan::transport::local {

RouteFacts LocalEndpoint::facts(Op op, const PublishedRegion& local, const ImportedMemory& remote,
                                const LocalPath& path, BatchSummary shape, bool for_peer) const {
  const MemoryKind ours = local.key.kind, theirs = remote.key().kind;
  RouteFacts f{.local = ours, .remote = theirs};
  f.mapped = path.kind.mapped;
  f.local_dma = local.dma();
  f.remote_dma = on_gpu(theirs) ? f.mapped != Mapped::nothing : remote.host_dma();
  f.cross_process = cross_process().ok() && remote.key().address != 0 && !on_gpu(theirs);
  f.peer_can_map = local.key.handle.mappable() && !unopened_.contains(local.key.id.serial);
  f.peer_mapped = mapped_by(local.key);
  f.may_ask_peer = !for_peer;
  f.threads = transport_.copiers.cpu->threads();
  f.bounce = transport_.registry() != nullptr;
  f.bounce_on_gpu = on_gpu(ours) && on_gpu(theirs) && gpu_bounce_buffer_.ok();
  if (on_gpu(ours) && on_gpu(theirs))
    f.link = local.key.gpu == remote.key().gpu ? copy::Link::same_gpu : copy::Link::peer;
  f.shape = shape;
  if (!on_gpu(ours) && !on_gpu(theirs)) return f;
  const bool kernels = shape.hints.ctas != 0;
  if (!kernels) f.why_no_kernel = "TransferOptions::copy_ctas is 0";
  if (f.mapped == Mapped::nothing) {
    f.own_kernel = kernels && path.copiers != nullptr && path.copiers->usual->has_kernel();
    f.slots = remote.key().anonymous && path.copiers != nullptr && path.copiers->slots != nullptr &&
              path.copiers->slots->has_room();
    return f;
  }
  const GpuCopiers* const copiers = path.copiers;
  if (copiers == nullptr) return f;
  const copy::GpuCopier& copier = *copiers->usual;
  f.kernel = kernels && copier.has_kernel();
  f.rates = copier.rates(f.link);
  if (kernels) f.why_no_kernel = copier.kernel().what();
  f.resident = f.kernel && copiers->resident != nullptr;
  if (f.link == copy::Link::host) {
    f.to_gpu = on_gpu(op == Op::write ? theirs : ours);
    f.links = copier.links();
    f.why_one_link = copier.relay_status().what();
  }
  return f;
}

Explanation LocalEndpoint::explain(Op op, const memory::Region& local, const Mapping& remote,
                                   BatchSummary shape) const {
  const base::MutexLock lock(transport_.copiers.mutex);
  const auto ours = transport_.published(local.facts().id.serial);
  const auto& memory = static_cast<const LocalMapping&>(remote).memory();
  if (ours == nullptr || ours->region != &local)
    return {.path = {}, .executor = {}, .reason = "the region is not registered", .refused = {}};
  RouteFacts f = facts(op, *ours, *memory, transport_.find_path(*ours, *memory), shape, false);
  const std::string why = memory->why_not_mapped();
  f.why_not_mapped = why;
  const std::string no_cross = memory->key().address == 0
                                   ? std::string("the owner registered it as exclusive")
                                   : cross_process().what();
  f.why_no_cross_process = no_cross;
  const auto unopened = unopened_.find(ours->key.id.serial);
  f.why_peer_cannot = unopened == unopened_.end() ? ours->key.handle.why_none : unopened->second;
  f.why_no_gpu_bounce = gpu_bounce_buffer_.what();
  return describe(f, route(f));
}

std::string LocalEndpoint::describe_paths() const {
  if (peer_.process == base::this_process()) return "one process: memory by its address";
  std::string text = transport_.topology() == nullptr
                         ? "GPU memory not at all, for there is no GPU here; "
                         : "GPU memory by cuda_ipc and ";
  text += "shared memory by memfd, tried when a region is imported; ";
  if (cross_process().ok()) return text + "private host memory by process_vm_readv, which works";
  return text +
         "private host memory by the side that can map the other's, for process_vm_readv "
         "does not work: " +
         cross_process().what();
}

/// Returns whether a copy for another Engine touches host memory that its owner can unmap or
/// protect at any time. Memory that linkspan made and sealed stays. Transfers of this Engine trust
/// their user.
bool LocalEndpoint::touches_private_memory(const LocalInflightBatch& inflight) {
  const auto is_private = [](MemoryKind kind) {
    return kind == MemoryKind::host || kind == MemoryKind::pinned;
  };
  return (inflight.for_peer() && is_private(inflight.target->key.kind)) ||
         (inflight.remote->same_process() && is_private(inflight.remote->key().kind));
}

}  // namespace linkspan::transport::local
