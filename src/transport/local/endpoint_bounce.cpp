// LocalEndpoint: batches between two memories that neither side can map, in chunks through bounce
// memory. For a write, a step copies its chunk here and then requests the second copy from the
// peer; for a read it requests first. A step is a LocalInflightBatch, so cancel, completion and
// the peer's end work as for any other.
#include <algorithm>

#include "base/no_memory.hpp"
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
    auto fresh = std::make_shared<BounceBuffer>();
    transport_.off_the_lock([transport = &transport_, device, fresh] {
      auto memory = base::or_no_memory([&] { return BounceMemory::create(*transport, device); });
      const base::MutexLock lock(fresh->mutex);
      fresh->made = true;
      fresh->status = memory.status();
      if (memory.ok()) fresh->memory = *std::move(memory);
    });
    buffer = std::move(fresh);  // which will be made
  }
  auto& bounced = std::get<OwnBatch>(inflight.role).bounced;
  bounced = std::make_unique<BouncedBatch>();
  bounced->route = chosen;
  bounced->buffer = buffer;
  inflight.state = BatchState::bouncing;
}

/// Routes a batch again whose bounce buffer could not be created or opened. facts() already
/// excludes the failed kind.
void LocalEndpoint::reroute_bounce(LocalInflightBatch& inflight, const Status& why) {
  release_completion_flag(inflight.request);
  const LocalPath path = transport_.find_path(*inflight.target, *inflight.remote);
  const RouteFacts f = facts(inflight.op, *inflight.target, *inflight.remote, path,
                             summary_of(inflight.blocks), false);
  if (const Route chosen = route(f); chosen.where == Route::Where::both)
    return start_bounce(inflight, chosen);
  inflight.finish({Code::unreachable, Scope::request, why.what()});
}

/// Adds as many steps as there are free chunks. Ends the batch once no step is left.
void LocalEndpoint::add_steps(LocalInflightBatch& parent, BouncedBatch& bounced) {
  if (bounced.memory == nullptr) {
    Status status;
    {
      const base::MutexLock lock(bounced.buffer->mutex);
      if (!bounced.buffer->made && parent.canceled)
        return parent.finish({Code::canceled, Scope::request, "canceled"});
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
    try {
      add_step(parent, bounced, *chunk);
    } catch (...) {
      bounced.memory->release(*chunk);
      throw;
    }
  }
  if (bounced.steps != 0) return;
  if (parent.end.ok() && bounced.restart) return reroute_bounce(parent, gpu_bounce_buffer_);
  if (!parent.end.ok() || bounced.next == parent.blocks.size()) parent.state = BatchState::ended;
}

void LocalEndpoint::add_step(LocalInflightBatch& parent, BouncedBatch& bounced, unsigned chunk) {
  InflightBatches made(1);
  LocalInflightBatch& step = made.front();
  step.role = BounceStep{.parent = &parent, .chunk = chunk};
  step.state = BatchState::starting_phase;
  step.op = parent.op;
  step.local_copy.ctas = parent.local_copy.ctas;
  step.target = parent.target;
  step.remote = parent.remote;
  std::size_t next = bounced.next;
  std::uint64_t next_offset = bounced.next_offset;
  for (std::uint64_t room = bounced.memory->chunk_bytes();
       room != 0 && next < parent.blocks.size() &&
       step.blocks.size() < transport_.capabilities().max_batch_blocks;) {
    const Block& block = parent.blocks[next];
    const std::uint64_t bytes = std::min(block.bytes - next_offset, room);
    step.blocks.push_back(
        {block.local_offset + next_offset, block.remote_offset + next_offset, bytes});
    room -= bytes;
    next_offset += bytes;
    if (next_offset < block.bytes) break;
    ++next;
    next_offset = 0;
  }
  inflight_.splice(inflight_.end(), made);
  bounced.next = next;
  bounced.next_offset = next_offset;
  ++bounced.steps;
  ++steps_;
}

/// Starts the current phase. In the chunk the blocks of a step follow each other.
void LocalEndpoint::start_phase(LocalInflightBatch& inflight, const BounceStep& step) {
  const BouncedBatch& bounced = *std::get<OwnBatch>(step.parent->role).bounced;
  const bool by_us = (inflight.op == Op::write) != step.second_phase;
  inflight.end = inflight.canceled ? Status(Code::canceled, Scope::request, "canceled") : Status();
  if (inflight.end.ok() && by_us) {
    LocalCopy& local_copy = inflight.local_copy;
    std::uint64_t there = bounced.memory->address(step.chunk);
    for (const Block& b : inflight.blocks) {
      const std::uint64_t here = inflight.target->region->facts().address + b.local_offset;
      local_copy.pieces.push_back(inflight.op == Op::write ? copy::Piece{there, here, b.bytes}
                                                           : copy::Piece{here, there, b.bytes});
      there += b.bytes;
    }
    local_copy.method = bounced.route.method;
    local_copy.link = bounced.route.near_link;
    local_copy.device = own_device(*inflight.target);
    local_copy.copier = transport_.copiers.cpu.get();
    if (local_copy.device != nullptr)
      local_copy.copier = transport_.gpu_copiers(local_copy.device)->usual.get();
    inflight.state = BatchState::copying;
    return;
  }
  if (inflight.end.ok()) inflight.end = ready();
  if (inflight.end.ok() && !inflight.remote->alive())
    inflight.end =
        Status(Code::unreachable, Scope::request, "the peer has deregistered the region");
  if (inflight.end.ok()) {
    std::vector<Block> blocks = inflight.blocks;
    std::uint64_t here = bounced.memory->offset(step.chunk), bytes = 0;
    for (Block& b : blocks) {
      b.local_offset = here + bytes;
      bytes += b.bytes;
    }
    const Status status =
        request_copy(inflight.request, inflight.op, bounced.memory->published(),
                     inflight.remote->key().id.serial, std::span<const Block>(blocks));
    if (status.ok()) {
      expect_end(inflight.request, bounced.route.far_method, bounced.route.far_link, bytes);
      inflight.state = BatchState::requested;
      return;
    }
    if (status.code() == Code::no_resource) return;
    inflight.end = status;
  }
  inflight.state = BatchState::ended;
}

/// Returns true if the first phase succeeded; the step then starts the second one.
bool LocalEndpoint::advance_phase(LocalInflightBatch& inflight) {
  BounceStep* const step = inflight.step();
  if (step == nullptr || step->second_phase || !inflight.end.ok()) return false;
  release_completion_flag(inflight.request);
  step->second_phase = true;
  inflight.state = BatchState::starting_phase;
  return true;
}

/// Releases the chunk of a step that has ended, so that nothing touches it any more.
void LocalEndpoint::finish_step(const Status& end, const BounceStep& step) {
  LocalInflightBatch& parent = *step.parent;
  BouncedBatch& bounced = *std::get<OwnBatch>(parent.role).bounced;
  --bounced.steps;
  bounced.memory->release(step.chunk);
  if (end.ok()) return;
  if (end.code() == Code::unsupported && uses_gpu_memory(bounced.route)) {
    // The peer cannot open the buffer. Blocks that were copied are written again.
    gpu_bounce_buffer_ = end;
    bounced.restart = true;
  } else if (parent.end.ok() && !bounced.restart) {
    parent.end = end.code() == Code::unsupported
                     ? Status(Code::unreachable, Scope::request, end.what())
                     : end;
  }
  for (LocalInflightBatch& other : inflight_)
    if (const BounceStep* its = other.step(); its != nullptr && its->parent == &parent)
      other.cancel();
}

PollHint LocalEndpoint::bounce_poll_hint(const LocalInflightBatch& parent,
                                         const BouncedBatch& bounced, base::Time now) const {
  using When = PollHint::When;
  if (bounced.memory == nullptr) return {When::at, now + kCreationPollInterval};
  const bool left = bounced.next < parent.blocks.size();
  const bool goes_on = left && parent.end.ok() && !parent.canceled && !bounced.restart;
  const bool may_add = goes_on && bounced.memory->has_room() && steps_ < kMaxBounceSteps;
  const bool over = bounced.steps == 0 && !goes_on;
  return {may_add || over ? When::now : When::idle, {}};
}

}  // namespace linkspan::transport::local
