#include "copy/relay.hpp"

#include <algorithm>
#include <string>

namespace linkspan::copy {
namespace {

constexpr std::size_t kStreamSets = 2;
constexpr std::uint64_t kRounded = std::uint64_t{64} << 10;  // granularity of the own link's part

std::uint64_t cut(std::uint64_t bytes, std::uint64_t most) { return (bytes + most - 1) / most; }

Status none(std::string why) { return {Code::unsupported, Scope::request, std::move(why)}; }

}  // namespace

Result<std::unique_ptr<Relay>> Relay::create(cuda::Topology& topology, const cuda::Device& device,
                                             unsigned most) {
  if (most == 0) return none("EngineOptions::relay_gpus (LINKSPAN_RELAY_GPUS) is 0");
  const auto all = topology.devices();
  if (all.size() < 2) return none("this process sees one GPU only");
  std::vector<const cuda::Device*> donors;
  Status why;
  for (std::size_t i = 1; i < all.size() && donors.size() < most; ++i) {
    const std::size_t ordinal = static_cast<std::size_t>(device.info().ordinal) + i;
    const cuda::DeviceInfo& info = all[ordinal % all.size()];
    Status access = cuda::has_peer_access(device, info);
    if (access.ok()) {  // checked first, so that no context is made for nothing
      const auto other = topology.open(info.uuid);
      access = other.ok() ? cuda::enable_peer_access(device, **other) : other.status();
      if (access.ok()) donors.push_back(*other);
    }
    if (why.ok()) why = std::move(access);
  }
  if (donors.empty()) return why;
  std::unique_ptr<Relay> relay(new Relay(std::move(donors)));
  relay->stream_sets_.reserve(kStreamSets);
  while (relay->stream_sets_.size() < kStreamSets)
    if (Status status = relay->add_streams(device); !status.ok()) return status;
  return relay;
}

Status Relay::add_streams(const cuda::Device& device) {
  auto scope = device.enter();
  if (!scope.ok()) return scope.status();
  auto fetches = cuda::Stream::create(*scope);
  if (!fetches.ok()) return fetches.status();
  auto joined = cuda::Event::create(*scope);
  if (!joined.ok()) return joined.status();
  RelayStreams streams(*std::move(fetches), *std::move(joined));
  std::vector<cuda::CUdeviceptr> bases;
  for (const cuda::Device* donor : donors_) {
    auto there = donor->enter();
    if (!there.ok()) return there.status();
    auto memory = cuda::DeviceBuffer::create(*there, kBuffers * kRelayChunk);
    if (!memory.ok()) return memory.status();
    auto fills = cuda::Stream::create(*there);
    if (!fills.ok()) return fills.status();
    bases.push_back(memory->address());
    memory_.push_back(*std::move(memory));
    streams.fills_.push_back(*std::move(fills));
  }
  for (std::size_t i = 0; i < kBuffers * donors_.size(); ++i) {
    const std::size_t donor = i % donors_.size();
    auto empty = cuda::Event::create(*scope);  // before the donor's context is the current one
    if (!empty.ok()) return empty.status();
    auto there = donors_[donor]->enter();
    if (!there.ok()) return there.status();
    auto full = cuda::Event::create(*there);
    if (!full.ok()) return full.status();
    streams.buffers_.push_back({donor, bases[donor] + i / donors_.size() * kRelayChunk,
                                *std::move(full), *std::move(empty)});
  }
  stream_sets_.push_back(std::move(streams));
  return {};
}

std::uint64_t Relay::share(std::uint64_t bytes) const noexcept {
  if (bytes < kMinRelayBytes) return 0;
  return bytes - cut(bytes / links(), kRounded) * kRounded;
}

/// Returns the size of a chunk, so that each donor gets some of the share.
std::uint64_t Relay::chunk_bytes(std::uint64_t share) const noexcept {
  return std::min(kRelayChunk, cut(share, donors_.size()));
}

Result<Relay::RelayStreams*> Relay::choose_streams(const Order& order) {
  RelayStreams* const none = nullptr;
  if (order.method != Method::copy_engine || order.link != Link::host || !order.to_gpu ||
      !donor_error_.ok())
    return none;
  std::uint64_t chunks = 0;
  for (const Piece& piece : order.pieces)
    if (const std::uint64_t part = share(piece.bytes)) chunks += cut(part, chunk_bytes(part));
  if (chunks == 0) return none;
  const bool ordered = order.after != nullptr;
  RelayStreams& streams = stream_sets_[ordered ? 1 : 0];
  if (streams.in_flight_ != 0) {
    const bool room = streams.in_flight_ + chunks <= kChunks;
    if (!ordered && !room) return Status::no_resource();
    if (ordered && (!room || streams.user_stream_ != order.stream)) return none;
  }
  streams.user_stream_ = order.stream;
  return &streams;
}

Status Relay::wait_for(RelayStreams& streams, const cuda::Event& event) {
  for (std::size_t i = 0; i < donors_.size() && donor_error_.ok(); ++i) {
    const auto there = donors_[i]->enter();
    donor_error_ = there.ok() ? streams.fills_[i].wait_for(*there, event) : there.status();
  }
  return donor_error_;
}

/// Queues the first hop: host memory to a donor's buffer.
Status Relay::fill(RelayStreams& streams, RelayStreams::RelayBuffer& buffer, std::uint64_t from,
                   std::uint64_t bytes) {
  const auto there = donors_[buffer.donor]->enter();
  if (!there.ok()) return there.status();
  cuda::Stream& stream = streams.fills_[buffer.donor];
  if (Status s = stream.wait_for(*there, buffer.empty); !s.ok()) return s;
  if (Status s = stream.copy(*there, buffer.memory, from, bytes); !s.ok()) return s;
  return buffer.full.record(*there, stream.get());
}

std::uint64_t Relay::queue(const cuda::DeviceScope& scope, RelayStreams& streams,
                           const Piece& piece) {
  const std::uint64_t most = chunk_bytes(piece.bytes);
  std::uint64_t done = 0;
  while (done < piece.bytes && donor_error_.ok() && streams.in_flight_ < kChunks) {
    RelayStreams::RelayBuffer& buffer =
        streams.buffers_[streams.next_buffer_++ % streams.buffers_.size()];
    const std::uint64_t bytes = std::min(most, piece.bytes - done);
    donor_error_ = fill(streams, buffer, piece.from + done, bytes);
    if (donor_error_.ok()) donor_error_ = streams.fetches_.wait_for(scope, buffer.full);
    if (donor_error_.ok())
      donor_error_ = streams.fetches_.copy(scope, piece.to + done, buffer.memory, bytes);
    if (!donor_error_.ok()) break;
    done += bytes;
    ++streams.in_flight_;
    donor_error_ = buffer.empty.record(scope, streams.fetches_.get());
  }
  return done;
}

Status Relay::join(const cuda::DeviceScope& scope, RelayStreams& streams, cuda::Stream& stream) {
  Status status = streams.joined_.record(scope, streams.fetches_.get());
  if (status.ok()) status = stream.wait_for(scope, streams.joined_);
  return status;
}

Status Relay::end(RelayStreams& streams, unsigned chunks) {
  streams.in_flight_ -= chunks;
  for (std::size_t i = 0; i < donors_.size(); ++i) {
    const auto there = donors_[i]->enter();
    Status answer = there.ok() ? streams.fills_[i].query(*there) : there.status();
    if (answer.ok() || answer.code() == Code::pending) continue;
    if (donor_error_.ok()) donor_error_ = answer;
    return answer;
  }
  return {};
}

}  // namespace linkspan::copy
