// LocalEndpoint: copies that one end runs for the other, and the end of regions.
#include "base/no_memory.hpp"
#include "base/schema/local_generated.h"
#include "memory/validate_allocation.hpp"
#include "transport/batch.hpp"
#include "transport/local/endpoint.hpp"

namespace linkspan::transport::local {
namespace {

/// One of the two is null.
struct WireShape {
  flatbuffers::Offset<flatbuffers::Vector<const schema::WireBlock*>> blocks;
  flatbuffers::Offset<schema::WirePages> pages;
};

/// Pages take a third of what their blocks would.
WireShape wire_shape(flatbuffers::FlatBufferBuilder& out, const BatchShape& shape) {
  if (const auto* const pages = std::get_if<Pages>(&shape)) {
    const auto list = [&](std::span<const std::uint32_t> index) {
      return out.CreateVector(index.data(), index.size());
    };
    const auto here = list(pages->local_index), there = list(pages->remote_index);
    return {.blocks = {},
            .pages = schema::CreateWirePages(out, pages->page_bytes, pages->local_base,
                                             pages->remote_base, here, there)};
  }
  const auto blocks = std::get<std::span<const Block>>(shape);
  const auto put = [&](std::size_t i, schema::WireBlock* to) {
    *to = {blocks[i].local_offset, blocks[i].remote_offset, blocks[i].bytes};
  };
  return {.blocks = out.CreateVectorOfStructs<schema::WireBlock>(blocks.size(), put), .pages = {}};
}

}  // namespace

Status LocalEndpoint::request_copy(PeerRequest& request, Op op, const PublishedRegion& local,
                                   std::uint64_t remote_serial, const BatchShape& shape) {
  const std::uint64_t serial = local.key.id.serial;
  if (!offered_.contains(serial)) {
    const memory::PublishedKey key = local.published_key(transport_.topology());
    // Costs a driver call for each chunk, once for a region and a peer. None waits for work in
    // flight (fact: Chunks.SharingBesideAHeldStream).
    auto fds = memory::fds_for_peer(key);
    if (!fds.ok()) return fds.status();
    flatbuffers::FlatBufferBuilder out;
    const auto bytes =
        out.CreateVector(reinterpret_cast<const std::uint8_t*>(key.bytes.data()), key.bytes.size());
    out.Finish(schema::CreateOffer(out, bytes));
    if (Status status = send(LocalMessage::offer, finished(out), *fds); !status.ok()) return status;
    offered_.insert(serial);
  }
  if (Status status = share_completion_flags(); !status.ok()) return status;
  flatbuffers::FlatBufferBuilder out;
  const WireShape wire = wire_shape(out, shape);
  request.id = ++last_request_id_;
  const auto flag = completion_flags_->acquire();
  Status status = base::or_no_memory([&] {
    out.Finish(schema::CreateExecute(out, request.id, op == Op::write, serial, remote_serial,
                                     wire.blocks, flag.value_or(kNoFlag), wire.pages));
    return send(LocalMessage::execute, finished(out));
  });
  if (!status.ok()) {
    if (flag) completion_flags_->release(*flag);
    return status;
  }
  request.completion_flag = flag.value_or(kNoFlag);
  request.offered_serial = serial;
  return {};
}

Status LocalEndpoint::share_completion_flags() {
  if (completion_flags_ != nullptr) return {};
  auto flags = CompletionFlags::create();
  if (!flags.ok()) return flags.status();
  auto fd = (*flags)->fd().duplicate();
  if (!fd.ok()) return fd.status();
  if (Status status = send(LocalMessage::completion_flags, {}, std::span(&*fd, 1)); !status.ok())
    return status;
  completion_flags_ = *std::move(flags);
  return {};
}

/// Returns true if the peer has reported an OK end by the flag.
bool LocalEndpoint::poll_completion_flag(PeerRequest& request) {
  request.polled = base::Clock::steady().now();
  return request.completion_flag != kNoFlag &&
         completion_flags_->succeeded(request.completion_flag);
}

void LocalEndpoint::release_completion_flag(PeerRequest& request) {
  if (request.completion_flag != kNoFlag)
    completion_flags_->release(std::exchange(request.completion_flag, kNoFlag));
}

/// Begins a copy for the peer, like one of this side's, once its key is open.
void LocalEndpoint::open_offer(LocalInflightBatch& inflight, OfferedRegion& offer) {
  {
    const base::MutexLock lock(offer.mutex);
    if (!offer.opened && inflight.canceled)
      return inflight.finish({Code::canceled, Scope::request, "canceled"});
    if (!offer.opened) return;
    inflight.end = offer.status;
    inflight.remote = offer.memory;
  }
  if (inflight.end.ok() && inflight.canceled)
    inflight.end = Status(Code::canceled, Scope::request, "canceled");
  if (inflight.end.ok() && !inflight.remote->alive())
    inflight.end = Status(Code::unreachable, Scope::request, "the region was deregistered");
  // A copy to host memory that was freed would crash this process.
  const memory::Region::Facts& own = inflight.target->region->facts();
  if (inflight.end.ok() && own.kind != MemoryKind::device &&
      !memory::is_mapped(own.address, own.bytes))
    inflight.end = memory::freed_early();
  if (inflight.end.ok()) {
    Capabilities limits = transport_.capabilities();
    limits.max_batch_blocks = limits.max_batch_pages;  // a peer's pages come as blocks
    const std::span<const Block> list(inflight.blocks);
    auto shape =
        check_shape(list, inflight.target->key.bytes, inflight.remote->key().bytes, limits);
    Status status = shape.ok() ? begin(inflight, *inflight.target,
                                       transport_.find_path(*inflight.target, *inflight.remote),
                                       *std::move(shape))
                               : shape.status();
    if (status.ok()) return;
    if (status.code() == Code::no_resource) {
      inflight.local_copy.pieces.clear();
      return;
    }
    inflight.end = status;
  }
  inflight.state = BatchState::ended;
}

/// Reports the end of a batch. Returns true if the batch can be erased.
bool LocalEndpoint::report(LocalInflightBatch& inflight, CompletionSink& sink) {
  if (auto* role = std::get_if<CopyForPeer>(&inflight.role)) return report_to_peer(inflight, *role);
  release_completion_flag(inflight.request);
  if (const BounceStep* step = inflight.step()) {
    finish_step(inflight.end, *step);
    return true;
  }
  if (inflight.mapped != Mapped::nothing)
    inflight.path.path = path_here(inflight.mapped, inflight.local_copy.method);
  const std::uint64_t cookie = std::get<OwnBatch>(inflight.role).cookie;
  sink.complete({cookie, std::move(inflight.end), inflight.path});
  return true;
}

bool LocalEndpoint::report_to_peer(LocalInflightBatch& inflight, CopyForPeer& role) {
  if (!terminated_) {
    // Set once, because the peer reuses the flag for another copy.
    const std::uint32_t flag = std::exchange(role.completion_flag, kNoFlag);
    if (inflight.end.ok() && peers_completion_flags_ != nullptr)
      peers_completion_flags_->report_success(flag);
    flatbuffers::FlatBufferBuilder out;
    const auto what = out.CreateString(inflight.end.what().substr(0, 512));
    out.Finish(
        schema::CreateExecuted(out, role.id, static_cast<std::uint8_t>(inflight.end.code()), what));
    if (send(LocalMessage::executed, finished(out)).code() == Code::no_resource) return false;
  }
  --inflight.target->uses;
  return true;
}

bool LocalEndpoint::queue_retract(std::uint64_t serial, bool revoke_immediately) {
  const base::MutexLock lock(retract_mutex_);
  if (retracts_refused_) return false;
  retracts_.emplace_back(serial, revoke_immediately);
  any_queued_ = true;
  channel_.request_progress();
  return true;
}

void LocalEndpoint::unmapped_here(std::uint64_t serial) {
  const base::MutexLock lock(retract_mutex_);
  auto waiting = retracted_by_peer_.extract(serial);
  if (waiting.empty()) return;
  retracted_replies_.insert(std::move(waiting));  // allocates nothing
  any_queued_ = true;
  channel_.request_progress();
}

bool LocalEndpoint::send_retract(std::uint64_t serial, bool revoke_immediately) {
  offered_.erase(serial);
  unopened_.erase(serial);
  flatbuffers::FlatBufferBuilder out;
  out.Finish(schema::CreateRetract(out, serial, revoke_immediately));
  return send(LocalMessage::retract, finished(out)).code() != Code::no_resource;
}

bool LocalEndpoint::send_retracted(std::uint64_t serial) {
  flatbuffers::FlatBufferBuilder out;
  out.Finish(schema::CreateRetracted(out, serial));
  return send(LocalMessage::retracted, finished(out)).code() != Code::no_resource;
}

/// Returns the time until the next send_pending(). The peer waits until this side has unmapped a
/// region, which may happen without any call of the user; a full channel needs longer to drain.
std::optional<Duration> LocalEndpoint::wait_to_send() const {
  const base::MutexLock lock(retract_mutex_);
  if (!retracts_.empty() || !retracted_replies_.empty()) return std::chrono::milliseconds(10);
  if (!retracted_by_peer_.empty()) return std::chrono::milliseconds(1);
  return std::nullopt;
}

/// Sends until the channel is full, with one failed try at most.
void LocalEndpoint::send_pending() {
  std::erase_if(unmap_pending_, [this](std::uint64_t serial) {
    return transport_.unmap({.incarnation = peer_.incarnation, .buffer = 0, .serial = serial});
  });
  if (!any_queued_.load(std::memory_order_relaxed)) return;
  for (;;) {  // what finds no room or no memory stays; other threads only add
    std::optional<std::pair<std::uint64_t, bool>> retract;
    std::uint64_t reply = 0;
    {
      const base::MutexLock lock(retract_mutex_);
      if (!retracts_.empty())
        retract = retracts_.front();
      else if (!retracted_replies_.empty())
        reply = *retracted_replies_.begin();
      else
        any_queued_ = false;
      if (!any_queued_) return;
    }
    if (!(retract ? send_retract(retract->first, retract->second) : send_retracted(reply))) return;
    const base::MutexLock lock(retract_mutex_);
    if (retract)
      retracts_.pop_front();
    else
      retracted_replies_.erase(reply);
  }
}

void LocalEndpoint::peer_terminated() {
  const base::MutexLock lock(transport_.copiers.mutex);
  terminated_ = true;
  {
    const base::MutexLock retracts(retract_mutex_);
    retracts_refused_ = true;
    retracts_.clear();
    retracted_by_peer_.clear();
    retracted_replies_.clear();
  }
  transport_.acknowledged(*this, 0);
  unmap_pending_.clear();
  for (LocalInflightBatch& inflight : inflight_) {
    if (inflight.state == BatchState::requested) {
      inflight.finish({Code::disconnected, Scope::peer, "peer " + peer_name() + " is gone"});
    } else if (inflight.for_peer()) {
      inflight.cancel();
    }
  }
  offers_.clear();
}

}  // namespace linkspan::transport::local
