// Batches between two memories that neither side can map: in chunks through bounce memory. Of a
// write, a leg copies its chunk here and then asks the peer to copy it on; of a read it asks first.
// A leg is a Slot as any other, so it is canceled, awaited and lost as any other.
#include <algorithm>

#include "transport/batch.hpp"
#include "transport/local/endpoint.hpp"

namespace linkspan::transport::local {
namespace {

/// To make bounce memory takes milliseconds.
constexpr Duration kMaking = std::chrono::microseconds(100);

bool uses_gpu_memory(const Route& way) { return way.near_link == copy::Link::same_gpu; }

}  // namespace

/// Null: not a GPU's memory.
const cuda::Device* LocalEndpoint::own_device(const Published& local) const {
  return local.key.kind == MemoryKind::device ? transport_.topology()->active(local.key.gpu)
                                              : nullptr;
}

/// From the first block on, whatever went another way before.
void LocalEndpoint::cross(Slot& slot, const Route& way) {
  const cuda::Device* device = uses_gpu_memory(way) ? own_device(*slot.target) : nullptr;
  std::shared_ptr<BounceBuffer>& bay = bounce_buffers_[device];
  if (bay == nullptr) {
    bay = std::make_shared<BounceBuffer>();
    transport_.off_the_lock([transport = &transport_, device, bay] {
      auto memory = BounceMemory::create(*transport, device);
      const base::MutexLock lock(bay->mutex);
      bay->made = true;
      bay->status = memory.status();
      if (memory.ok()) bay->memory = *std::move(memory);
    });
  }
  slot.crossing = std::make_unique<BouncedBatch>();
  slot.crossing->way = way;
  slot.crossing->bay = bay;
  slot.stage = Stage::crossing;
}

/// What it tried is not to be had; route() knows.
void LocalEndpoint::cross_another_way(Slot& slot, const Status& why) {
  release_word(slot);
  const RouteFacts f = facts(slot.op, *slot.target, *slot.remote, shape_of(slot.blocks), false);
  if (const Route way = route(f); way.where == Route::Where::both) return cross(slot, way);
  slot.end = Status(Code::unreachable, Scope::request, why.what());
  slot.stage = Stage::ended;
}

/// As many as there are chunks; the end of the batch once none is left.
void LocalEndpoint::add_legs(Slot& whole) {
  BouncedBatch& c = *whole.crossing;
  if (c.memory == nullptr) {
    Status status;
    {
      const base::MutexLock lock(c.bay->mutex);
      if (!c.bay->made) return;
      status = c.bay->status;
      c.memory = c.bay->memory.get();
    }
    if (!status.ok()) {
      std::erase_if(bounce_buffers_, [&](const auto& each) { return each.second == c.bay; });
      if (uses_gpu_memory(c.way)) {
        gpu_bounce_buffer_ = status;
        return cross_another_way(whole, status);
      }
      whole.end = status;
    }
  }
  const bool left = c.next < whole.blocks.size();
  if (whole.end.ok() && left) whole.end = ready();
  if (whole.end.ok() && left && whole.canceled)
    whole.end = Status(Code::canceled, Scope::request, "canceled");
  while (whole.end.ok() && !c.again && c.next < whole.blocks.size() && legs_ < kMaxLegs) {
    const auto chunk = c.memory->take();
    if (!chunk) break;
    add_leg(whole, *chunk);
  }
  if (c.legs != 0) return;
  if (whole.end.ok() && c.again) return cross_another_way(whole, gpu_bounce_buffer_);
  if (!whole.end.ok() || c.next == whole.blocks.size()) whole.stage = Stage::ended;
}

void LocalEndpoint::add_leg(Slot& whole, unsigned chunk) {
  BouncedBatch& c = *whole.crossing;
  Slot& leg = slots_.emplace_back();
  leg.whole = &whole;
  leg.chunk = chunk;
  leg.stage = Stage::turning;
  leg.op = whole.op;
  leg.ctas = whole.ctas;
  leg.target = whole.target;
  leg.remote = whole.remote;
  for (std::uint64_t room = c.memory->chunk_bytes(); room != 0 && c.next < whole.blocks.size();) {
    const Block& block = whole.blocks[c.next];
    const std::uint64_t bytes = std::min(block.bytes - c.cut, room);
    leg.blocks.push_back({block.local_offset + c.cut, block.remote_offset + c.cut, bytes});
    room -= bytes;
    c.cut += bytes;
    if (c.cut < block.bytes) break;
    ++c.next;
    c.cut = 0;
  }
  ++c.legs;
  ++legs_;
}

/// Its blocks lie one behind the other in the chunk.
void LocalEndpoint::start_hop(Slot& leg) {
  const BouncedBatch& c = *leg.whole->crossing;
  const bool by_us = (leg.op == Op::write) != leg.second;
  leg.end = leg.canceled ? Status(Code::canceled, Scope::request, "canceled") : Status();
  if (leg.end.ok() && by_us) {
    std::uint64_t there = c.memory->address(leg.chunk);
    for (const Block& b : leg.blocks) {
      const std::uint64_t here = leg.target->region->facts().address + b.local_offset;
      leg.pieces.push_back(leg.op == Op::write ? copy::Piece{there, here, b.bytes}
                                               : copy::Piece{here, there, b.bytes});
      there += b.bytes;
    }
    leg.method = c.way.method;
    leg.link = c.way.near_link;
    leg.device = own_device(*leg.target);
    leg.copier = &transport_.cpu_copier();
    if (leg.device != nullptr) leg.copier = transport_.gpu_copiers(leg.device)->usual.get();
    leg.stage = Stage::running;
    return;
  }
  if (leg.end.ok()) leg.end = ready();
  if (leg.end.ok() && !leg.remote->alive())
    leg.end = Status(Code::unreachable, Scope::request, "the peer has deregistered the region");
  if (leg.end.ok()) {
    std::vector<Block> blocks = leg.blocks;
    std::uint64_t here = c.memory->offset(leg.chunk), bytes = 0;
    for (Block& b : blocks) {
      b.local_offset = here + bytes;
      bytes += b.bytes;
    }
    const Status status = ask_peer(leg, c.memory->published(), leg.remote->key().id.serial, blocks);
    if (status.ok()) return expect_end(leg, c.way.far_method, c.way.far_link, bytes);
    if (status.code() == Code::no_resource) return;
    leg.end = status;
  }
  leg.stage = Stage::ended;
}

/// True: it has made its first hop well and is to start the second one.
bool LocalEndpoint::turn(Slot& leg) {
  if (leg.whole == nullptr || leg.second || !leg.end.ok()) return false;
  release_word(leg);
  leg.second = true;
  leg.stage = Stage::turning;
  return true;
}

/// It has ended, so nothing touches its chunk any more.
void LocalEndpoint::land(Slot& leg) {
  Slot& whole = *leg.whole;
  BouncedBatch& c = *whole.crossing;
  --c.legs;
  c.memory->release(leg.chunk);
  if (leg.end.ok()) return;
  if (leg.end.code() == Code::unsupported && uses_gpu_memory(c.way)) {
    gpu_bounce_buffer_ = leg.end;  // the peer cannot open it; what has landed is written once more
    c.again = true;
  } else if (whole.end.ok() && !c.again) {
    whole.end = leg.end.code() == Code::unsupported
                    ? Status(Code::unreachable, Scope::request, leg.end.what())
                    : leg.end;
  }
  for (Slot& other : slots_)
    if (other.whole == &whole) stop(other);
}

PollHint LocalEndpoint::look_at_crossing(const Slot& whole, base::Time now) const {
  using When = PollHint::When;
  const BouncedBatch& c = *whole.crossing;
  if (c.memory == nullptr) return {When::at, now + kMaking};
  const bool left = c.next < whole.blocks.size();
  const bool goes_on = left && whole.end.ok() && !whole.canceled && !c.again;
  const bool may_add = goes_on && c.memory->has_room() && legs_ < kMaxLegs;
  const bool over = c.legs == 0 && !goes_on;
  return {may_add || over ? When::now : When::idle, {}};
}

}  // namespace linkspan::transport::local
