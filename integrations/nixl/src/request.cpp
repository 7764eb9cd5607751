#include "integrations/nixl/src/request.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace linkspan::nixl {
namespace {

constexpr Duration kRetry = std::chrono::milliseconds(5);  // of a submission that found no room
constexpr Duration kRetryImport = std::chrono::seconds(1);
constexpr std::uint64_t kBytesPerSecond = 1'000'000'000;  // what a deadline allows for at least

}  // namespace

Request::Request(const Services& services, std::shared_ptr<RemoteAgent> agent, Op op,
                 TransferPlan plan, PairMemories memories)
    : services_(services),
      agent_(std::move(agent)),
      op_(op),
      plan_(std::move(plan)),
      memories_(std::move(memories)) {
  agent_->connect();
  for (const auto& memory : memories_.remote) (void)memory->region();  // starts the import
}

Status Request::post(std::vector<std::byte> notification) {
  base::MutexLock lock(mutex_);
  if (state_ != State::idle && advance().code() == Code::pending)
    return {Code::busy, Scope::request, "the transfer is still in flight"};
  posted_.notification = std::move(notification);
  posted_.deadline = base::Deadline::in(services_.deadline +
                                        std::chrono::seconds(plan_.bytes() / kBytesPerSecond));
  state_ = State::waiting;
  Status started = advance();
  if (state_ == State::waiting)
    services_.tasks.add([self = shared_from_this()] { return self->step(); });
  return started;
}

Status Request::check() {
  base::MutexLock lock(mutex_);
  return advance();
}

Status Request::advance() {
  if (state_ == State::waiting) {
    Status started = start();
    const bool waits = started.code() == Code::pending || started.code() == Code::no_resource;
    if (waits && posted_.deadline->passed())
      return end({Code::timed_out, Scope::request,
                  "the transfer could not start before its deadline: " + started.what()});
    if (waits) return {Code::pending, Scope::request, started.what()};
    if (!started.ok()) return end(std::move(started));
    state_ = State::running;
  }
  if (state_ == State::running) {
    if (!posted_.transfer.done()) return {Code::pending, Scope::request, "in flight"};
    return end(posted_.transfer.status());
  }
  return last_;
}

/// Keeps the end for later checks. Whatever a transfer reports, an agent that is gone is the cause.
Status Request::end(Status end) {
  state_ = State::idle;
  posted_.transfer = {};
  last_ = std::move(end);
  if (last_.ok()) return last_;
  const auto peer = agent_->peer();
  if (!peer.ok() && peer.status().code() == Code::disconnected &&
      last_.code() != Code::disconnected && last_.code() != Code::canceled)
    last_ =
        Status(Code::disconnected, Scope::peer, last_.to_string() + "; " + peer.status().what());
  services_.log.write(base::Level::warning,
                      std::string(op_ == Op::write ? "a write to" : "a read from") + " agent \"" +
                          agent_->name() + "\" of " + std::to_string(plan_.bytes()) +
                          " bytes failed: " + last_.to_string());
  return last_;
}

/// Submits what was posted. pending, no_resource: it has to wait.
Status Request::start() {
  auto peer = agent_->peer();
  if (!peer.ok()) return peer.status();
  if (Status imported = import(); !imported.ok()) return imported;
  auto submitted = submit(*peer);
  if (!submitted.ok()) return submitted.status();
  posted_.transfer = *std::move(submitted);
  if (posted_.count++ == 0)
    agent_->check_path(*peer, op_, parts_.front().local, parts_.front().remote, plan_.blocks(),
                       plan_.bytes());
  return {};
}

Status Request::import() {
  if (!parts_.empty()) return {};
  std::vector<TransferPart> parts;
  parts.reserve(memories_.remote.size());
  Status waits;
  for (std::size_t i = 0; i < memories_.remote.size(); ++i) {
    auto remote = memories_.remote[i]->region();
    if (remote.ok())
      parts.push_back({memories_.local[i], *std::move(remote), plan_.pairs()[i].shape});
    else if (remote.status().code() == Code::pending)
      waits = remote.status();  // the imports of the others start meanwhile
    else
      return remote.status();  // no_resource: those of the others could not start either
  }
  if (waits.ok()) parts_ = std::move(parts);
  return waits;
}

Result<Transfer> Request::submit(const Peer& peer) {
  TransferOptions options = services_.transfer;
  options.deadline = posted_.deadline->left();
  if (options.deadline == Duration::zero())  // which means the Engine's default
    return Status(Code::pending, Scope::request, "it was ready too late");
  options.notification = posted_.notification;
  // prepare() chooses the best path, which may not be the required one.
  if (posted_.count == 0 || !options.require.empty())
    return op_ == Op::write ? peer.write(parts_, options) : peer.read(parts_, options);
  if (!posted_.prepared.valid()) {
    auto prepared = peer.prepare(op_, parts_);
    if (!prepared.ok()) return prepared.status();
    posted_.prepared = *std::move(prepared);
  }
  return posted_.prepared.post(options);
}

std::optional<base::Time> Request::step() {
  base::MutexLock lock(mutex_);
  if (state_ == State::waiting) (void)advance();
  if (state_ != State::waiting) return std::nullopt;
  // Connects and imports wake the tasks; room for a submission or for a further import does not.
  return base::Clock::steady().now() +
         std::min(posted_.deadline->left(), parts_.empty() ? kRetryImport : kRetry);
}

Status Request::release() {
  base::MutexLock lock(mutex_);
  if (state_ == State::running && !posted_.transfer.cancel().ok() && !posted_.transfer.done())
    return {Code::pending, Scope::request, "the transfer is not quiet yet: ask again"};
  state_ = State::idle;
  posted_.transfer = {};
  return {};
}

Result<Duration> Request::estimate() {
  base::MutexLock lock(mutex_);
  auto peer = agent_->peer();
  if (!peer.ok()) return peer.status();
  if (Status imported = import(); !imported.ok()) return imported;
  auto taken = peer->explain(op_, parts_.front().local, parts_.front().remote, plan_.blocks(),
                             plan_.bytes());
  if (!taken.ok()) return taken.status();
  if (!(taken->expected_gbps > 0))
    return Status(Code::unsupported, Scope::request,
                  "the rate of the path " + taken->path + " is not known");
  return Duration(
      static_cast<Duration::rep>(static_cast<double>(plan_.bytes()) / taken->expected_gbps));
}

}  // namespace linkspan::nixl
