#include "transport/nccl_net/peer_queues.hpp"

#include <algorithm>
#include <utility>

#include "base/no_memory.hpp"
#include "base/schema/nccl_net_generated.h"

namespace linkspan::transport::nccl_net {
namespace {

using schema::vector_of;

Status corrupt_queue_message(const char* what) { return {Code::corrupt, Scope::peer, what}; }

}  // namespace

PeerQueues::~PeerQueues() {
  end(Status(Code::canceled, Scope::peer, "the endpoint has ended"));
  if (thread_ != nullptr) transport_.threads().leave(*thread_);
}

/// Hands a queue to the thread of this peer, which the first queue chooses, and enters it: both or,
/// if this fails or throws, neither.
Status PeerQueues::add(Queues& queues, std::uint32_t number, QueueEntry entry) {
  if (thread_ == nullptr) thread_ = &transport_.threads().join();
  Queues made;
  made.emplace(number, entry);
  Status status = thread_->add(std::move(entry.queue));
  if (status.ok()) queues.merge(made);
  return status;
}

Result<PeerQueues::NumberedQueue> PeerQueues::receive(const cuda::Device* ours,
                                                      const GpuUuid& theirs) {
  for (const auto& [number, entry] : receives_)
    if (entry.queue->device() == ours && entry.theirs == theirs && !entry.reported_by_peer &&
        !entry.queue->broken())
      return NumberedQueue{number, entry.queue};
  if (receives_.size() >= kMaxQueues)
    return Status(
        Code::disconnected, Scope::peer,
        std::to_string(kMaxQueues) + " flows from one peer, broken ones too: connect to it again");
  // Shared with the thread.
  const auto queue = std::make_shared<ReceiveQueue>(transport_.queue_attributes(ours));
  const std::uint32_t number = ++last_queue_;
  flatbuffers::FlatBufferBuilder out;
  const auto gpu = vector_of(out, theirs);
  out.Finish(schema::CreateNetOpen(out, number, gpu));
  if (Status status = add(receives_, number, {.queue = queue, .theirs = theirs}); !status.ok())
    return status;
  try {
    outbox_.send(MessageType::open, out);
  } catch (...) {
    queue->end(base::no_memory(Scope::peer));
    receives_.erase(number);
    throw;
  }
  return NumberedQueue{number, queue};
}

std::shared_ptr<WorkQueue> PeerQueues::send(std::uint32_t number) const {
  const auto entry = sends_.find(number);
  return entry == sends_.end() ? nullptr : entry->second.queue;
}

Status PeerQueues::on_open(std::uint32_t number, const GpuUuid& gpu) {
  if (sends_.contains(number)) return corrupt_queue_message("a flow is opened twice");
  if (sends_.size() >= kMaxQueues) return corrupt_queue_message("more flows than a peer may open");
  cuda::Topology* const topology = transport_.options().topology;
  const cuda::Device* device = nullptr;
  if (gpu != GpuUuid{} && topology != nullptr) device = topology->active(gpu);
  if (gpu != GpuUuid{} && device == nullptr)
    return corrupt_queue_message("a flow from a GPU of which no region was published");
  // Shared with the thread.
  return add(sends_, number,
             {.queue = std::make_shared<SendQueue>(transport_.queue_attributes(device)),
              .announced = true});
}

Status PeerQueues::on_listening(std::uint32_t number, const Handle& handle) {
  const auto queue = send(number);
  if (queue == nullptr) return corrupt_queue_message("a flow listens that was not opened");
  queue->set_handle(handle);
  wake();
  return {};
}

void PeerQueues::on_broken(std::uint32_t number, bool by_receiver, const Status& why) {
  Queues& queues = by_receiver ? sends_ : receives_;
  if (const auto entry = queues.find(number); entry != queues.end()) {
    entry->second.reported_by_peer = true;
    entry->second.queue->end(why);
  }  // else both sides have reported it
  wake();
}

void PeerQueues::wake() {
  if (thread_ != nullptr) thread_->wake();
}

template <class Each>
void PeerQueues::for_each(const Each& each) {
  for (Queues* const queues : {&receives_, &sends_})
    for (auto& [number, entry] : *queues) each(entry);
}

void PeerQueues::end(const Status& why) {
  for_each([&](QueueEntry& entry) { entry.queue->end(why); });
  wake();
}

void PeerQueues::peer_terminated(const Status& why) {
  for_each([](QueueEntry& entry) { entry.reported_by_peer = entry.announced = true; });
  end(why);
}

void PeerQueues::report() {
  for (Queues* const queues : {&receives_, &sends_}) {
    for (auto& [number, entry] : *queues) {
      if (entry.reported) continue;
      if (const auto broken = entry.queue->broken()) {
        flatbuffers::FlatBufferBuilder out;
        const auto what = out.CreateString(broken->what().substr(0, 512));
        out.Finish(schema::CreateNetBroken(out, number, queues == &receives_,
                                           static_cast<std::uint8_t>(broken->code()), what));
        outbox_.send(MessageType::broken, out);
        entry.reported = true;
      } else if (const auto handle = entry.announced ? std::nullopt : entry.queue->handle()) {
        flatbuffers::FlatBufferBuilder out;
        const auto bytes = vector_of(out, *handle);
        out.Finish(schema::CreateNetListening(out, number, bytes));
        outbox_.send(MessageType::listening, out);
        entry.announced = true;
      }
    }
    std::erase_if(*queues, [](const auto& each) {
      return each.second.reported && each.second.reported_by_peer;
    });
  }
}

bool PeerQueues::has_reports() const {
  const auto reports = [](const auto& each) {
    const QueueEntry& entry = each.second;
    return !entry.reported && (!entry.announced || entry.reported_by_peer || entry.queue->broken());
  };
  return std::ranges::any_of(receives_, reports) || std::ranges::any_of(sends_, reports);
}

}  // namespace linkspan::transport::nccl_net
