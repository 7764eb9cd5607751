// LocalEndpoint: batches between two memories that neither side can map, in chunks through bounce
// memory. For a write, a step copies its chunk here and then requests the second copy from the
// peer; for a read it requests first. A step is an LocalInflightBatch, so cancel, completion and
// the peer's end work as for any other.
#include <algorithm>

#include "transport/batch.hpp"
#include "transport/local/endpoint.hpp"

namespace linkspan::transport::local {
namespace {

/// Creating bounce memory takes milliseconds.
constexpr Duration kCreationPollInterval = std::chrono::microseconds(100);

bool uses_gpu_memory(const Route& chosen) { return chosen.near_link == copy::Link::same_gpu; }

}  // namespace

/// Returns the GPU of the local memory; null for host memory.
const cuda::Device* LocalEndpoint::own_device(const PublishedRegion& local) const {
  return local.key.kind == MemoryKind::device ? transport_.topology()->active(local.key.gpu)
                                              : nullptr;
}

/// Starts the batch at its first block, even if an earlier route copied some.
void LocalEndpoint::start_bounce(LocalInflightBatch& inflight, const Route& chosen) {
  const cuda::Device* device = uses_gpu_memory(chosen) ? own_device(*inflight.target) : nullptr;
  std::shared_ptr<BounceBuffer>& buffer = bounce_buffers_[device];
  if (buffer == nullptr) {
    buffer = std::make_shared<BounceBuffer>();
    transport_.off_the_lock([transport = &transport_, device, buffer] {
      auto memory = BounceMemory::create(*transport, device);
      const base::MutexLock lock(buffer->mutex);
      buffer->made = true;
      buffer->status = memory.status();
      if (memory.ok()) buffer->memory = *std::move(memory);
    });
  }
  inflight.bounced = std::make_unique<BouncedBatch>();
  inflight.bounced->route = chosen;
  inflight.bounced->buffer = buffer;
  inflight.state = BatchState::bouncing;
}

/// Routes a batch again whose bounce buffer could not be created or opened. facts() already
/// excludes the failed kind.
void LocalEndpoint::reroute_bounce(LocalInflightBatch& inflight, const Status& why) {
  release_completion_flag(inflight);
  const LocalPath path = transport_.find_path(*inflight.target, *inflight.remote);
  const RouteFacts f = facts(inflight.op, *inflight.target, *inflight.remote, path,
                             summary_of(inflight.blocks), false);
  if (const Route chosen = route(f); chosen.where == Route::Where::both)
    return start_bounce(inflight, chosen);
  inflight.end = Status(Code::unreachable, Scope::request, why.what());
  inflight.state = BatchState::ended;
}

/// Adds as many steps as there are free chunks. Ends the batch once no step is left.
void LocalEndpoint::add_steps(LocalInflightBatch& parent) {
  BouncedBatch& bounced = *parent.bounced;
  if (bounced.memory == nullptr) {
    Status status;
    {
      const base::MutexLock lock(bounced.buffer->mutex);
      if (!bounced.buffer->made) return;
      status = bounced.buffer->status;
      bounced.memory = bounced.buffer->memory.get();
    }
    if (!status.ok()) {
      std::erase_if(bounce_buffers_,
                    [&](const auto& each) { return each.second == bounced.buffer; });
      if (uses_gpu_memory(bounced.route)) {
        gpu_bounce_buffer_ = status;
        return reroute_bounce(parent, status);
      }
      parent.end = status;
    }
  }
  const bool left = bounced.next < parent.blocks.size();
  if (parent.end.ok() && left) parent.end = ready();
  if (parent.end.ok() && left && parent.canceled)
    parent.end = Status(Code::canceled, Scope::request, "canceled");
  while (parent.end.ok() && !bounced.restart && bounced.next < parent.blocks.size() &&
         steps_ < kMaxBounceSteps) {
    const auto chunk = bounced.memory->acquire();
    if (!chunk) break;
    add_step(parent, *chunk);
  }
  if (bounced.steps != 0) return;
  if (parent.end.ok() && bounced.restart) return reroute_bounce(parent, gpu_bounce_buffer_);
  if (!parent.end.ok() || bounced.next == parent.blocks.size()) parent.state = BatchState::ended;
}

void LocalEndpoint::add_step(LocalInflightBatch& parent, unsigned chunk) {
  BouncedBatch& bounced = *parent.bounced;
  LocalInflightBatch& step = inflight_.emplace_back();
  step.parent = &parent;
  step.chunk = chunk;
  step.state = BatchState::starting_phase;
  step.op = parent.op;
  step.ctas = parent.ctas;
  step.target = parent.target;
  step.remote = parent.remote;
  for (std::uint64_t room = bounced.memory->chunk_bytes();
       room != 0 && bounced.next < parent.blocks.size();) {
    const Block& block = parent.blocks[bounced.next];
    const std::uint64_t bytes = std::min(block.bytes - bounced.next_offset, room);
    step.blocks.push_back({block.local_offset + bounced.next_offset,
                           block.remote_offset + bounced.next_offset, bytes});
    room -= bytes;
    bounced.next_offset += bytes;
    if (bounced.next_offset < block.bytes) break;
    ++bounced.next;
    bounced.next_offset = 0;
  }
  ++bounced.steps;
  ++steps_;
}

/// Starts the current phase. In the chunk the blocks of a step follow each other.
void LocalEndpoint::start_phase(LocalInflightBatch& step) {
  const BouncedBatch& bounced = *step.parent->bounced;
  const bool by_us = (step.op == Op::write) != step.second_phase;
  step.end = step.canceled ? Status(Code::canceled, Scope::request, "canceled") : Status();
  if (step.end.ok() && by_us) {
    std::uint64_t there = bounced.memory->address(step.chunk);
    for (const Block& b : step.blocks) {
      const std::uint64_t here = step.target->region->facts().address + b.local_offset;
      step.pieces.push_back(step.op == Op::write ? copy::Piece{there, here, b.bytes}
                                                 : copy::Piece{here, there, b.bytes});
      there += b.bytes;
    }
    step.method = bounced.route.method;
    step.link = bounced.route.near_link;
    step.device = own_device(*step.target);
    step.copier = transport_.copiers.cpu.get();
    if (step.device != nullptr) step.copier = transport_.gpu_copiers(step.device)->usual.get();
    step.state = BatchState::copying;
    return;
  }
  if (step.end.ok()) step.end = ready();
  if (step.end.ok() && !step.remote->alive())
    step.end = Status(Code::unreachable, Scope::request, "the peer has deregistered the region");
  if (step.end.ok()) {
    std::vector<Block> blocks = step.blocks;
    std::uint64_t here = bounced.memory->offset(step.chunk), bytes = 0;
    for (Block& b : blocks) {
      b.local_offset = here + bytes;
      bytes += b.bytes;
    }
    const Status status =
        request_copy(step, bounced.memory->published(), step.remote->key().id.serial, blocks);
    if (status.ok())
      return expect_end(step, bounced.route.far_method, bounced.route.far_link, bytes);
    if (status.code() == Code::no_resource) return;
    step.end = status;
  }
  step.state = BatchState::ended;
}

/// Returns true if the first phase succeeded; the step then starts the second one.
bool LocalEndpoint::advance_phase(LocalInflightBatch& step) {
  if (step.parent == nullptr || step.second_phase || !step.end.ok()) return false;
  release_completion_flag(step);
  step.second_phase = true;
  step.state = BatchState::starting_phase;
  return true;
}

/// Releases the chunk of a step that has ended, so that nothing touches it any more.
void LocalEndpoint::finish_step(LocalInflightBatch& step) {
  LocalInflightBatch& parent = *step.parent;
  BouncedBatch& bounced = *parent.bounced;
  --bounced.steps;
  bounced.memory->release(step.chunk);
  if (step.end.ok()) return;
  if (step.end.code() == Code::unsupported && uses_gpu_memory(bounced.route)) {
    // The peer cannot open the buffer. Blocks that were copied are written again.
    gpu_bounce_buffer_ = step.end;
    bounced.restart = true;
  } else if (parent.end.ok() && !bounced.restart) {
    parent.end = step.end.code() == Code::unsupported
                     ? Status(Code::unreachable, Scope::request, step.end.what())
                     : step.end;
  }
  for (LocalInflightBatch& other : inflight_)
    if (other.parent == &parent) stop(other);
}

PollHint LocalEndpoint::bounce_poll_hint(const LocalInflightBatch& parent, base::Time now) const {
  using When = PollHint::When;
  const BouncedBatch& bounced = *parent.bounced;
  if (bounced.memory == nullptr) return {When::at, now + kCreationPollInterval};
  const bool left = bounced.next < parent.blocks.size();
  const bool goes_on = left && parent.end.ok() && !parent.canceled && !bounced.restart;
  const bool may_add = goes_on && bounced.memory->has_room() && steps_ < kMaxBounceSteps;
  const bool over = bounced.steps == 0 && !goes_on;
  return {may_add || over ? When::now : When::idle, {}};
}

}  // namespace linkspan::transport::local
