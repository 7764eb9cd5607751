// The queues of a NcclNetEndpoint.
#include <algorithm>
#include <utility>

#include "base/no_memory.hpp"
#include "base/schema/nccl_net_generated.h"
#include "transport/nccl_net/endpoint.hpp"

namespace linkspan::transport::nccl_net {
namespace {

using namespace std::chrono_literals;
using schema::vector_of;

constexpr Duration kConnect = 10s;  // of a queue, from its first use

}  // namespace

Status NcclNetEndpoint::start(std::shared_ptr<WorkQueue> queue) {
  if (thread_ == nullptr) thread_ = &transport_.threads().join();
  return thread_->add(std::move(queue));
}

void NcclNetEndpoint::wake() {
  if (thread_ != nullptr) thread_->wake();
}

/// Breaks all queues with the peer, which fences their data, and gives the peer up.
void NcclNetEndpoint::fail(const Status& why) {
  if (!failed_.ok()) return;
  failed_ = why;
  for (auto& [id, entry] : receives_) entry.queue->end(why);
  for (auto& [id, entry] : sends_) entry.queue->end(why);
  wake();
  channel_.fail_peer(why);
}

base::Deadline NcclNetEndpoint::connect_by() { return base::Deadline::in(kConnect); }

Result<NcclNetEndpoint::Receives::iterator> NcclNetEndpoint::receive_queue(const cuda::Device* ours,
                                                                           const GpuUuid& theirs) {
  for (auto entry = receives_.begin(); entry != receives_.end(); ++entry)
    if (entry->second.queue->device() == ours && entry->second.theirs == theirs &&
        !entry->second.reported_by_peer && !entry->second.queue->broken())
      return entry;
  if (receives_.size() >= kMaxQueues)
    return Status(
        Code::disconnected, Scope::peer,
        std::to_string(kMaxQueues) + " flows from one peer, broken ones too: connect to it again");
  const NcclNetOptions& options = transport_.options();
  // Shared with the thread.
  auto queue = std::make_shared<ReceiveQueue>(
      options.plugin, ours, transport_.nic(ours != nullptr ? ours->info().uuid : GpuUuid{}),
      connect_by(), transport_.staging(),
      ReceiveQueue::Unpacking{options.topology, options.unpack, options.copy_ctas});
  const std::uint32_t number = ++last_queue_;
  flatbuffers::FlatBufferBuilder out;
  const auto gpu = vector_of(out, theirs);
  out.Finish(schema::CreateNetOpen(out, number, gpu));
  Receives made;
  made.emplace(number, QueueEntry<ReceiveQueue>{.queue = queue, .theirs = theirs});
  if (Status status = start(queue); !status.ok()) return status;
  try {
    enqueue(MessageType::open, out);
  } catch (...) {
    queue->end(base::no_memory(Scope::peer));
    throw;
  }
  return receives_.insert(made.extract(made.begin())).position;
}

/// Reports new listeners and broken queues to the peer, and removes queues that both sides know to
/// be broken. Runs before the end of a batch that broke with its queue is reported, so that the
/// next transfer uses another.
void NcclNetEndpoint::report_queues() {
  const auto report = [this](std::uint32_t number, auto& entry, bool by_receiver) {
    const auto broken = entry.queue->broken();
    if (!broken || entry.reported) return;
    flatbuffers::FlatBufferBuilder out;
    const auto what = out.CreateString(broken->what().substr(0, 512));
    out.Finish(schema::CreateNetBroken(out, number, by_receiver,
                                       static_cast<std::uint8_t>(broken->code()), what));
    enqueue(MessageType::broken, out);
    entry.reported = true;
  };
  const auto is_over = [](const auto& entry) {
    return entry.second.reported && entry.second.reported_by_peer;
  };
  for (auto& [number, entry] : receives_) {
    report(number, entry, true);
    const auto handle = entry.announced || entry.reported ? std::nullopt : entry.queue->handle();
    if (!handle) continue;
    flatbuffers::FlatBufferBuilder out;
    const auto bytes = vector_of(out, *handle);
    out.Finish(schema::CreateNetListening(out, number, bytes));
    enqueue(MessageType::listening, out);
    entry.announced = true;
  }
  for (auto& [number, entry] : sends_) report(number, entry, false);
  std::erase_if(receives_, is_over);
  std::erase_if(sends_, is_over);
}

}  // namespace linkspan::transport::nccl_net
