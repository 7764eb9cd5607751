#include "transport/verbs/verbs_endpoint.hpp"

#include <algorithm>
#include <utility>

#include "base/no_memory.hpp"
#include "base/schema/verbs_generated.h"

namespace linkspan::transport::verbs {
namespace {

using namespace std::chrono_literals;

constexpr const char* kVerbsPath = "verbs";
constexpr std::uint64_t kMinShare = std::uint64_t{1} << 20;  // bytes that one link gets at a time
constexpr Duration kMinPoll = 5us, kMaxPoll = 500us;         // while requests are outstanding
constexpr Duration kCallPoll = 50us;                         // while a device's call runs
constexpr Duration kChannelPoll = 1ms;                       // while the Channel has no room
constexpr Duration kBoundsCheck = 100ms;

/// Fills the list of a batch, of blocks that are not empty.
void add_blocks(const CheckedShape& shape, std::uint64_t here, VerbsBatch& batch) {
  batch.bytes = shape.size.bytes;
  batch.blocks.reserve(shape.size.blocks);
  if (shape.pages == nullptr) {
    for (const Block& b : shape.blocks())
      if (b.bytes != 0) batch.blocks.push_back({here + b.local_offset, b.remote_offset, b.bytes});
    return;
  }
  const Pages& pages = *shape.pages;
  if (pages.page_bytes == 0) return;
  for (std::size_t i = 0; i < pages.local_index.size(); ++i)
    batch.blocks.push_back({here + pages.local_base + pages.local_index[i] * pages.page_bytes,
                            pages.remote_base + pages.remote_index[i] * pages.page_bytes,
                            pages.page_bytes});
}

}  // namespace

VerbsEndpoint::VerbsEndpoint(VerbsTransport& transport, VerbsAddress peer, Channel& channel,
                             base::Deadline deadline)
    : transport_(transport),
      peer_(std::move(peer)),
      messages_(channel),
      life_{.connect_by = deadline},
      incoming_(transport.executor(), transport.options().settings, messages_,
                transport.options().rails, peer_.rails),
      served_(transport, messages_),
      requested_(messages_),
      flushes_{.of_peer = {transport.executor(), transport.gpu_flush()},
               .own = {transport.executor(), transport.gpu_flush()}} {
  const LinkContext context{.executor = transport.executor(),
                            .settings = transport.options().settings,
                            .messages = messages_,
                            .limits = transport.options().limits};
  const auto& here = transport.rails().rails;
  for (const RailPair& pair : join_rails(here, peer_.rails)) {
    LinkEnds ends{.from = pair.from,
                  .here = transport.options().rails[pair.from],
                  .there = {},
                  .device = here[pair.from].device};
    for (std::uint32_t i = 0; i < peer_.rails.size(); ++i) {
      const auto to = static_cast<std::uint32_t>((pair.to + i) % peer_.rails.size());
      if (may_join(here[pair.from], peer_.rails[to])) ends.there.push_back({to, peer_.rails[to]});
    }
    links_.push_back(std::make_unique<OutgoingLink>(context, std::move(ends)));
  }
}

Status VerbsEndpoint::peer_is_gone() const {
  return {Code::disconnected, Scope::peer,
          "peer " + std::string(messages_.channel().peer_name()) + " is gone"};
}

Status VerbsEndpoint::ready() const {
  if (life_.closed) return {Code::canceled, Scope::peer, "the endpoint is closed"};
  if (life_.disconnected) return peer_is_gone();
  if (!life_.failed.ok()) return life_.failed;
  if (!life_.met && life_.connect_by.passed())
    return {Code::timed_out, Scope::peer,
            "peer " + std::string(messages_.channel().peer_name()) +
                " has not answered by RDMA in time"};
  return refused(now());
}

Status VerbsEndpoint::refused(base::Time at) const {
  if (links_.empty())
    return {Code::unreachable, Scope::transport,
            "no RDMA device here is of the kind of the peer's: one side has InfiniBand, the other "
            "RoCE, or the subnets differ"};
  for (const auto& link : links_)
    if (!link->is_refused(at)) return {};
  return base::or_no_memory([this] {
    std::string text;
    for (const auto& link : links_)
      text +=
          (text.empty() ? "" : "; ") + (link->why().ok() ? link->describe() : link->why().what());
    return Status(Code::unreachable, Scope::transport, std::move(text));
  });
}

Result<Posted> VerbsEndpoint::post(const Batch& batch) {
  if (Status status = ready(); !status.ok()) return status;
  auto resolved = transport_.check(batch, peer_.incarnation);
  if (!resolved.ok()) return resolved.status();
  if (batches_.size() >= transport_.capabilities().max_inflight) return Status::no_resource();
  auto made = batches_.take();
  made->cookie = batch.cookie;
  made->op = batch.op;
  made->memory.remote = resolved->remote;
  Posted begun{.path = {.path = kVerbsPath, .by_peer = false}};
  const WireRegion& local = *resolved->use.memory();
  add_blocks(resolved->checked, local.address, *made);
  if (!made->blocks.empty()) {
    made->memory.keys = transport_.keys(local.key.id.serial);
    if (made->memory.keys == nullptr)
      return Status(Code::unreachable, Scope::request, "the local region is being deregistered");
    made->unsent.reserve(links_.size() + 1);
    made->unsent.push_back({{}, {made->blocks.size(), 0}});
    const auto access = requested_.acquire(made->memory.remote->key());
    if (!access.ok()) return access.status();
    made->memory.access = *access;
    made->memory.use = std::move(resolved->use);
    made->memory.flushes_here = batch.op == Op::read && GpuFlush::is_needed(local.device);
    transport_.count(made->blocks.size());
  }
  batches_.add(std::move(made));
  // If it finds no memory, progress() sends.
  (void)base::or_no_memory([this] {
    pump();
    return Status();
  });
  return begun;
}

/// Sends what has room, in turn by the links that are up: by devices next to the memory of a GPU,
/// by others where none of those is.
void VerbsEndpoint::pump() {
  for (const auto& batch : batches_) {
    if (!batch->wants_to_send()) continue;
    std::uint64_t up = 0, near = 0;
    for (const auto& link : links_) {
      if (!link->is_up() || !link->carries(*batch)) continue;
      ++up;
      near += link->is_nearest(*batch->memory.keys) ? 1 : 0;
    }
    if (up == 0) continue;
    const std::uint64_t share = std::max(kMinShare, batch->bytes / (near != 0 ? near : up) + 1);
    for (std::size_t idle = 0; batch->wants_to_send() && idle < links_.size();) {
      OutgoingLink& link = *links_[pace_.next_link++ % links_.size()];
      if (!link.has_room() || !link.carries(*batch) ||
          (near != 0 && !link.is_nearest(*batch->memory.keys))) {
        ++idle;
        continue;
      }
      idle = 0;
      pace_.moved_at = now();
      link.fill(*batch, share);
    }
  }
}

void VerbsEndpoint::cancel(std::uint64_t cookie) {
  for (const auto& batch : batches_)
    if (batch->cookie == cookie && !batch->canceled_at) batch->canceled_at = now();
}

void VerbsEndpoint::advance(base::Time at) {
  const bool needed = std::ranges::any_of(
      batches_, [](const auto& each) { return !each->unsent.empty() && !each->stopped(); });
  for (const auto& link : links_) {
    const std::uint64_t before = link->completed();
    link->advance(at, needed);
    if (link->completed() != before) pace_.moved_at = at;
  }
  if (needed && !life_.disconnected) fail_unreachable(at);
}

/// Returns whether the link carries a batch as it is that has something left to send.
bool VerbsEndpoint::is_wanted(const OutgoingLink& link) const {
  return std::ranges::any_of(
      batches_, [&](const auto& batch) { return batch->wants_to_send() && link.carries(*batch); });
}

/// Ends the batches that no link carries, now or by another rail of the peer's.
void VerbsEndpoint::fail_unreachable(base::Time at) {
  for (const auto& batch : batches_) {
    if (batch->unsent.empty() || batch->stopped()) continue;
    OutgoingLink* other = nullptr;  // that would carry it by another rail of the peer's
    const bool reachable = std::ranges::any_of(links_, [&](const auto& link) {
      if (link->is_refused(at) || !link->may_carry(*batch)) return false;
      if (link->is_up() && !link->carries(*batch)) {
        other = link.get();
        return false;
      }
      return true;
    });
    if (!reachable && other != nullptr && !is_wanted(*other)) other->redirect();
    if (reachable || other != nullptr) continue;
    const Status why = refused(at);
    batch->fail(why.ok() ? Status(Code::unreachable, Scope::transport,
                                  "no RDMA devices that reach each other have registered the "
                                  "memory of both sides")
                         : why);
  }
}

/// Ends the batches that have something left to send.
void VerbsEndpoint::fail_all(const Status& why) {
  for (const auto& batch : batches_)
    if (!batch->moved()) batch->fail(why);
}

/// Bounds how long requests of a canceled batch stay outstanding.
void VerbsEndpoint::check_canceled(base::Time at) {
  if (at < pace_.next_check || life_.disconnected || !life_.failed.ok()) return;
  pace_.next_check = at + kBoundsCheck;
  bool fence = false;
  for (const auto& batch : batches_) {
    if (!batch->canceled_at || (batch->moved() && batch->flush != VerbsBatch::Flush::asked))
      continue;
    fence |= at - *batch->canceled_at > kCancelFences;
    if (at - *batch->canceled_at <= kCancelEnds) continue;
    Status why(Code::disconnected, Scope::peer,
               "peer " + std::string(messages_.channel().peer_name()) +
                   " has not ended a canceled transfer for 10 s: connect to it again");
    messages_.channel().fail_peer(why);
    life_.failed = std::move(why);
    return;
  }
  for (const auto& link : links_)
    if (fence && link->is_in_flight())
      link->fence(
          {Code::unreachable, Scope::peer, "RDMA by " + link->describe() + " completes nothing"});
}

std::size_t VerbsEndpoint::progress(CompletionSink& sink) {
  const base::Time at = now();
  messages_.flush();
  transport_.handle_events(at);
  incoming_.advance();
  if (incoming_.has_ended()) served_.end();
  served_.advance(at);
  requested_.advance();
  advance(at);
  check_canceled(at);
  pump();
  advance_flushes();
  std::size_t completed = 0;
  batches_.take_over([this](const VerbsBatch& batch) { return completion_of(batch); },
                     [&](std::unique_ptr<VerbsBatch> batch, Completion completion) {
                       if (batch->memory.access != nullptr)
                         requested_.release(batch->memory.remote->key(), *batch->memory.access);
                       batches_.release(std::move(batch));  // before its owner learns of it
                       sink.complete(std::move(completion));
                       ++completed;
                     });
  requested_.advance();
  return completed;
}

Completion VerbsEndpoint::completion_of(const VerbsBatch& batch) const {
  Completion completion{batch.cookie, end_of(batch)};
  if (completion.status.scope() == Scope::transport) completion.unfinished = unfinished_of(batch);
  return completion;
}

Status VerbsEndpoint::end_of(const VerbsBatch& batch) const {
  if (batch.unsent.empty() && batch.end.ok()) return {};
  if (!batch.end.ok() && !batch.canceled_at) return batch.end;
  if (life_.disconnected) return peer_is_gone();
  return {Code::canceled, Scope::request, "canceled"};
}

PollHint VerbsEndpoint::poll_hint() const {
  const base::Time at = base::Clock::steady().now();
  PollHint hint;
  const auto after = [&](Duration wait) {
    hint = earlier(hint, {.when = PollHint::When::at, .at = at + wait, .patient = true});
  };
  if (served_.has_news() || requested_.returns()) return {.when = PollHint::When::now};
  bool waits = false, canceled = false;
  for (const auto& batch : batches_) {
    if (batch->moved() && batch->flush != VerbsBatch::Flush::asked)
      return {.when = PollHint::When::now};
    waits |= batch->wants_to_send();
    canceled |= batch->canceled_at.has_value();
  }
  bool in_flight = false;
  for (const auto& link : links_) {
    in_flight |= link->is_in_flight() && link->is_up();
    if (link->is_changing()) after(kCallPoll);
    if (waits && link->retry_at() != base::Time{})
      after(std::max<Duration>(link->retry_at() - at, Duration::zero()));
  }
  if (in_flight)
    hint = earlier(
        hint, {.when = PollHint::When::at,
               .at = at + std::clamp<Duration>((at - pace_.moved_at) / 8, kMinPoll, kMaxPoll)});
  const bool flushes = flushes_.own.size() + flushes_.of_peer.size() != 0 ||
                       (incoming_.has_ended() && !flushes_.ended);
  if (incoming_.is_changing() || flushes) after(kCallPoll);
  if (!messages_.empty()) after(kChannelPoll);
  if (canceled || served_.awaits_peer()) after(kBoundsCheck);
  return hint;
}

Explanation VerbsEndpoint::explain(Op, const memory::Region& local, const Mapping& remote,
                                   BatchSummary) const {
  if (const Status status = refused(now()); !status.ok())
    return {.path = {}, .executor = {}, .reason = status.what(), .expected_gbps = 0, .refused = {}};
  return {.path = kVerbsPath,
          .executor = "here",
          .reason = describe_paths(transport_.keys(local.facts().id.serial).get()),
          .expected_gbps = 0,
          .refused = transport_.refused(local, remote)};
}

std::string VerbsEndpoint::describe_paths(const MemoryKeys* memory) const {
  std::string text;
  for (const auto& link : links_)
    if (memory == nullptr || link->is_nearest(*memory))
      text += (text.empty() ? "RDMA by " : ", ") + link->describe();
  return text.empty() ? "no RDMA: the devices of both sides are of different kinds" : text;
}

void VerbsEndpoint::close() {
  life_.closed = true;
  for (const auto& batch : batches_) cancel(batch->cookie);
}

void VerbsEndpoint::peer_terminated() {
  life_.disconnected = true;
  messages_.close();
  incoming_.end();
  for (const auto& link : links_) link->end();
  fail_all(peer_is_gone());
}

bool VerbsEndpoint::drained() const {
  return life_.disconnected && incoming_.has_ended() && flushes_.ended &&
         std::ranges::all_of(links_, [](const auto& each) { return each->has_ended(); });
}

}  // namespace linkspan::transport::verbs
