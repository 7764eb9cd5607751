#include "copy/relay.hpp"

#include <algorithm>
#include <string>

namespace linkspan::copy {
namespace {

constexpr std::size_t kWays = 2;
constexpr std::uint64_t kRounded = std::uint64_t{64} << 10;  // ends the part of the own link

std::uint64_t cut(std::uint64_t bytes, std::uint64_t most) { return (bytes + most - 1) / most; }

Status none(std::string why) { return {Code::unsupported, Scope::request, std::move(why)}; }

}  // namespace

Result<std::unique_ptr<Relay>> Relay::create(cuda::Topology& topology, const cuda::Device& device,
                                             unsigned most) {
  if (most == 0) return none("EngineOptions::relay_gpus (LINKSPAN_RELAY_GPUS) is 0");
  const auto all = topology.devices();
  if (all.size() < 2) return none("this process sees one GPU only");
  std::vector<const cuda::Device*> lenders;
  Status why;
  for (std::size_t i = 1; i < all.size() && lenders.size() < most; ++i) {
    const std::size_t ordinal = static_cast<std::size_t>(device.info().ordinal) + i;
    const cuda::DeviceInfo& info = all[ordinal % all.size()];
    Status lent = cuda::has_peer_access(device, info);
    if (lent.ok()) {  // else its context would be made for nothing
      const auto other = topology.open(info.uuid);
      lent = other.ok() ? cuda::enable_peer_access(device, **other) : other.status();
      if (lent.ok()) lenders.push_back(*other);
    }
    if (why.ok()) why = std::move(lent);
  }
  if (lenders.empty()) return why;
  std::unique_ptr<Relay> relay(new Relay(std::move(lenders)));
  relay->ways_.reserve(kWays);
  while (relay->ways_.size() < kWays)
    if (Status status = relay->add_way(device); !status.ok()) return status;
  return relay;
}

Status Relay::add_way(const cuda::Device& device) {
  auto scope = device.enter();
  if (!scope.ok()) return scope.status();
  auto fetches = cuda::Stream::create(*scope);
  if (!fetches.ok()) return fetches.status();
  auto joined = cuda::Event::create(*scope);
  if (!joined.ok()) return joined.status();
  Way way(*std::move(fetches), *std::move(joined));
  std::vector<cuda::CUdeviceptr> bases;
  for (const cuda::Device* lender : lenders_) {
    auto there = lender->enter();
    if (!there.ok()) return there.status();
    auto memory = cuda::DeviceBuffer::create(*there, kSlots * kRelayChunk);
    if (!memory.ok()) return memory.status();
    auto fills = cuda::Stream::create(*there);
    if (!fills.ok()) return fills.status();
    bases.push_back(memory->address());
    memory_.push_back(*std::move(memory));
    way.fills_.push_back(*std::move(fills));
  }
  for (std::size_t i = 0; i < kSlots * lenders_.size(); ++i) {
    const std::size_t lender = i % lenders_.size();
    auto empty = cuda::Event::create(*scope);  // before the lender's context is the current one
    if (!empty.ok()) return empty.status();
    auto there = lenders_[lender]->enter();
    if (!there.ok()) return there.status();
    auto full = cuda::Event::create(*there);
    if (!full.ok()) return full.status();
    way.slots_.push_back({lender, bases[lender] + i / lenders_.size() * kRelayChunk,
                          *std::move(full), *std::move(empty)});
  }
  ways_.push_back(std::move(way));
  return {};
}

std::uint64_t Relay::share(std::uint64_t bytes) const noexcept {
  if (bytes < kRelayLeast) return 0;
  return bytes - cut(bytes / links(), kRounded) * kRounded;
}

/// So that each lender has some.
std::uint64_t Relay::chunk_bytes(std::uint64_t share) const noexcept {
  return std::min(kRelayChunk, cut(share, lenders_.size()));
}

Result<Relay::Way*> Relay::way_of(const Order& order) {
  Way* const none = nullptr;
  if (order.method != Method::copy_engine || order.link != Link::host || !order.to_gpu ||
      !lost_.ok())
    return none;
  std::uint64_t chunks = 0;
  for (const Piece& piece : order.pieces)
    if (const std::uint64_t part = share(piece.bytes)) chunks += cut(part, chunk_bytes(part));
  if (chunks == 0) return none;
  const bool held = order.after != nullptr;
  Way& way = ways_[held ? 1 : 0];
  if (way.in_flight_ != 0) {
    const bool room = way.in_flight_ + chunks <= kChunks;
    if (!held && !room) return Status::no_resource();
    if (held && (!room || way.held_by_ != order.stream)) return none;
  }
  way.held_by_ = order.stream;
  return &way;
}

Status Relay::wait_for(Way& way, const cuda::Event& event) {
  for (std::size_t i = 0; i < lenders_.size() && lost_.ok(); ++i) {
    const auto there = lenders_[i]->enter();
    lost_ = there.ok() ? way.fills_[i].wait_for(*there, event) : there.status();
  }
  return lost_;
}

/// The lender's hop.
Status Relay::fill(Way& way, Way::Slot& slot, std::uint64_t from, std::uint64_t bytes) {
  const auto there = lenders_[slot.lender]->enter();
  if (!there.ok()) return there.status();
  cuda::Stream& stream = way.fills_[slot.lender];
  if (Status s = stream.wait_for(*there, slot.empty); !s.ok()) return s;
  if (Status s = stream.copy(*there, slot.memory, from, bytes); !s.ok()) return s;
  return slot.full.record(*there, stream.get());
}

std::uint64_t Relay::queue(const cuda::DeviceScope& scope, Way& way, const Piece& piece) {
  const std::uint64_t most = chunk_bytes(piece.bytes);
  std::uint64_t done = 0;
  while (done < piece.bytes && lost_.ok() && way.in_flight_ < kChunks) {
    Way::Slot& slot = way.slots_[way.next_++ % way.slots_.size()];
    const std::uint64_t bytes = std::min(most, piece.bytes - done);
    lost_ = fill(way, slot, piece.from + done, bytes);
    if (lost_.ok()) lost_ = way.fetches_.wait_for(scope, slot.full);
    if (lost_.ok()) lost_ = way.fetches_.copy(scope, piece.to + done, slot.memory, bytes);
    if (!lost_.ok()) break;
    done += bytes;
    ++way.in_flight_;
    lost_ = slot.empty.record(scope, way.fetches_.get());
  }
  return done;
}

Status Relay::join(const cuda::DeviceScope& scope, Way& way, cuda::Stream& stream) {
  Status status = way.joined_.record(scope, way.fetches_.get());
  if (status.ok()) status = stream.wait_for(scope, way.joined_);
  return status;
}

Status Relay::end(Way& way, unsigned chunks) {
  way.in_flight_ -= chunks;
  for (std::size_t i = 0; i < lenders_.size(); ++i) {
    const auto there = lenders_[i]->enter();
    Status answer = there.ok() ? way.fills_[i].query(*there) : there.status();
    if (answer.ok() || answer.code() == Code::pending) continue;
    if (lost_.ok()) lost_ = answer;
    return answer;
  }
  return {};
}

}  // namespace linkspan::copy
