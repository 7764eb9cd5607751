// LocalEndpoint: small batches between a GPU of this process and private memory of the peer, in two
// copies through a pinned slot. The GPU makes one, and the kernel the other, so nothing wakes the
// peer.
#include "transport/local/endpoint.hpp"

namespace linkspan::transport::local {
namespace {

/// Marks a CallersCopy::id that is a SecondCopy::id and not the ticket of an order.
constexpr std::uint64_t kOfSlot = std::uint64_t{1} << 63;

}  // namespace

/// Starts the first copy: the GPU's of a write, the kernel's of a read.
Status LocalEndpoint::begin_through_slot(LocalInflightBatch& inflight, const LocalPath& path,
                                         copy::Method method, std::span<const Block> blocks,
                                         bool caller_copies) {
  // A copy that was in flight when the context was lost may still write to its slot.
  if (const Status& lost = path.copiers->usual->context_error(); !lost.ok()) return lost;
  PinnedSlots::Acquired slot = path.copiers->slots->acquire();
  LocalCopy gpu, across;
  gpu.method = method;
  gpu.ctas = inflight.local_copy.ctas;
  gpu.device = path.kind.device;
  gpu.copier = path.copiers->usual.get();
  across.method = copy::Method::cross_process;
  across.copier = transport_.copiers.cpu.get();
  const bool write = inflight.op == Op::write;
  std::uint64_t at = slot.address();
  for (const Block& block : blocks) {
    const std::uint64_t here = path.local_address + block.local_offset;
    const std::uint64_t there = inflight.remote->key().address + block.remote_offset;
    gpu.pieces.push_back(
        {.to = write ? at : here, .from = write ? here : at, .bytes = block.bytes});
    across.pieces.push_back(
        {.to = write ? there : at, .from = write ? at : there, .bytes = block.bytes});
    at += block.bytes;
  }
  OwnBatch& own = std::get<OwnBatch>(inflight.role);
  own.by_caller = !write && caller_copies && inflight.remote->prompt();
  own.second = std::make_unique<SecondCopy>(SecondCopy{.slot = std::move(slot),
                                                       .copy = std::move(write ? across : gpu),
                                                       .id = kOfSlot | ++slot_batches_});
  inflight.local_copy = std::move(write ? gpu : across);
  inflight.state = BatchState::copying;
  const Status status = start_some(inflight);
  if (status.ok()) return {};
  own.by_caller = false;
  return status.code() == Code::no_resource ? Status() : status;  // advance() tries again
}

/// Makes the second copy the current one. Returns false if there is none.
bool LocalEndpoint::take_second_copy(LocalInflightBatch& inflight) {
  auto* const own = std::get_if<OwnBatch>(&inflight.role);
  if (own == nullptr || own->second == nullptr || !own->second->copy) return false;
  inflight.local_copy = *std::move(own->second->copy);
  own->second->copy.reset();
  own->by_caller = false;
  return true;
}

/// Returns the ticket of the kernel's copy; 0: it has not begun, or has ended.
copy::Ticket LocalEndpoint::ticket_across(std::uint64_t id) const {
  const base::MutexLock lock(transport_.copiers.mutex);
  for (const LocalInflightBatch& each : inflight_)
    if (const auto* own = std::get_if<OwnBatch>(&each.role);
        own != nullptr && own->second != nullptr && own->second->id == id &&
        each.local_copy.method == copy::Method::cross_process)
      return each.local_copy.ticket;
  return 0;
}

bool LocalEndpoint::copy_as_caller(CallersCopy copy) {
  copy::CpuCopier& cpu = *transport_.copiers.cpu;
  if (!copy.now) return cpu.help((copy.id & kOfSlot) == 0 ? copy.id : ticket_across(copy.id));
  cpu.run(copy.id);
  return true;
}

}  // namespace linkspan::transport::local
