// Names in an EngineImpl: publishing regions here, and looking up those of peers.
//
// A reader that asks for a set gets the serials of one version and imports each region by its
// serial. A serial never names another region, so the reader gets that version, or an error and
// then the next version.
#include <iterator>
#include <utility>

#include "base/interrupt.hpp"
#include "engine/diagnostics/report.hpp"
#include "engine/engine_impl.hpp"

namespace linkspan::engine {
namespace {

Status check_name(std::string_view name) {
  if (!name.empty() && name.size() <= memory::kMaxNameBytes) return {};
  return {Code::invalid_argument, Scope::request,
          "a region's name has 1 to " + std::to_string(memory::kMaxNameBytes) +
              " bytes, this one has " + std::to_string(name.size())};
}

Status unexpected_answer() {
  return {Code::corrupt, Scope::peer, "the peer answered something else than it was asked"};
}

}  // namespace

// ---- published here ----------------------------------------------------------------------------

Status EngineImpl::publish(std::string_view name, const Region& region) {
  if (!region.valid() || name.empty())
    return {Code::invalid_argument, Scope::request, "publish needs a region and a name"};
  Status status = registry_->set_name(region.registration_->id(), name);
  if (status.ok()) notify_set_waiters(name);
  return status;
}

Result<std::uint64_t> EngineImpl::publish(std::string_view name, std::span<const Region> regions) {
  std::vector<memory::RegionId> ids;
  for (const Region& region : regions) {
    if (!region.valid())
      return Status(Code::invalid_argument, Scope::request,
                    "number " + std::to_string(ids.size()) + " of the set is no region");
    ids.push_back(region.registration_->id());
  }
  auto version = registry_->publish(name, ids);
  if (version.ok()) notify_set_waiters(name);
  return version;
}

void EngineImpl::on_set_request(control::Session& session, std::uint64_t request,
                                control::AskSet ask) {
  using control::FrameOp;
  const std::uint64_t peer = session.id();
  std::optional<memory::PublishedSet> set;
  Status refused;
  {
    const base::MutexLock lock(sets_mutex_);
    set_waits_.erase({peer, request});
    if (ask.name.empty()) return;
    set = registry_->find_set(ask.name);
    if (ask.waits && !(set && set->version > ask.above)) {
      const auto waiting = std::distance(set_waits_.lower_bound({peer, 0}),
                                         set_waits_.upper_bound({peer, ~std::uint64_t{0}}));
      if (static_cast<std::size_t>(waiting) < kMaxSetWaits) {
        set_waits_.emplace(std::pair(peer, request), std::move(ask));
        return;
      }
      refused = Status(Code::no_resource, Scope::request,
                       std::to_string(waiting) + " of yours wait here for a version: at most that");
    } else if (!set) {
      refused =
          Status(Code::not_found, Scope::request, "no region is published as " + quoted(ask.name));
    }
  }
  // If the send queue is full the reply is dropped, and the requester times out at its own
  // deadline.
  (void)(refused.ok() ? session.send(FrameOp::set, request, control::encode_set(*set))
                      : session.send(FrameOp::error, request, control::encode_error(refused)));
}

void EngineImpl::notify_set_waiters(std::string_view name) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> waiters;
  std::optional<memory::PublishedSet> set;
  {
    const base::MutexLock lock(sets_mutex_);
    set = registry_->find_set(name);
    if (!set) return;
    std::erase_if(set_waits_, [&](const auto& wait) {
      const bool ready = wait.second.name == name && set->version > wait.second.above;
      if (ready) waiters.push_back(wait.first);
      return ready;
    });
  }
  for (const auto& [peer, request] : waiters) {
    const auto session = session_of(peer);
    if (session == nullptr) continue;
    (void)session->send(control::FrameOp::set, request, control::encode_set(*set));
  }
}

void EngineImpl::forget_set_waits(std::uint64_t peer) {
  const base::MutexLock lock(sets_mutex_);
  std::erase_if(set_waits_, [&](const auto& wait) { return wait.first.first == peer; });
}

// ---- looked up there ---------------------------------------------------------------------------

Result<RemoteRegion> EngineImpl::lookup(std::uint64_t peer, std::string_view name,
                                        Duration timeout) {
  if (Status status = check_name(name); !status.ok()) return status;
  auto region = import_named(peer, name, 0, after(timeout));
  if (!region.ok()) return region.status();
  return RemoteRegion(shared_from_this(), *std::move(region));
}

Result<RegionSet> EngineImpl::lookup_set(std::uint64_t peer, std::string_view name,
                                         Duration timeout) {
  if (Status status = check_name(name); !status.ok()) return status;
  const base::Deadline deadline = after(timeout);
  RegionSet found;
  Status failed;
  for (std::size_t versions = 0;; ++versions) {
    const auto set = ask_for_set(peer, {.name = std::string(name)}, deadline);
    if (versions > 1 && set.status().code() == Code::timed_out)
      return Status(Code::timed_out, Scope::request,
                    quoted(name) + " was not imported in time, but begun " +
                        std::to_string(versions) +
                        " times, since it was published anew meanwhile; of version " +
                        std::to_string(found.version) + ": " + failed.what());
    if (!set.ok()) return set.status();
    if (set->version == found.version) return failed;  // so that was not the reason
    found = {.version = set->version, .regions = {}};
    failed = {};
    for (std::size_t i = 0; failed.ok() && i < set->serials.size(); ++i) {
      auto region = import_named(peer, name, set->serials[i], deadline);
      failed = region.status();
      if (region.ok())
        found.regions.push_back(RemoteRegion(shared_from_this(), *std::move(region)));
    }
    if (failed.ok()) return found;
    if (InterruptCheck::has_ended()) return base::interrupted();
  }
}

Result<std::uint64_t> EngineImpl::await_version(std::uint64_t peer, std::string_view name,
                                                std::uint64_t above, Duration timeout) {
  if (Status status = check_name(name); !status.ok()) return status;
  auto set =
      ask_for_set(peer, {.name = std::string(name), .above = above, .waits = true}, after(timeout));
  if (set.ok()) return set->version;
  if (set.status().code() != Code::timed_out) return set.status();
  return Status(Code::timed_out, Scope::request,
                "peer " + std::to_string(peer) + " has published no " + quoted(name) +
                    " above version " + std::to_string(above) + " in time");
}

Result<memory::PublishedSet> EngineImpl::ask_for_set(std::uint64_t peer,
                                                     const control::AskSet& question,
                                                     base::Deadline deadline) {
  // Shared with the Control thread, which answers.
  const auto lookup = std::make_shared<Lookup>(Lookup{.deadline = deadline, .peer = peer});
  Status status = ask(lookup, control::FrameOp::ask_set, encode(question), question.name);
  const bool gives_up = question.waits && !closed_ &&
                        (status.code() == Code::timed_out || status.code() == Code::canceled);
  if (const auto session = gives_up ? session_of(peer) : nullptr; session != nullptr) {
    (void)session->send(control::FrameOp::ask_set, lookup->id, encode(control::AskSet{}));
  }
  if (!status.ok()) return status;
  if (lookup->set.serials.empty()) return unexpected_answer();
  return std::move(lookup->set);
}

Result<std::shared_ptr<ImportedRegion>> EngineImpl::import_named(std::uint64_t peer,
                                                                 std::string_view name,
                                                                 std::uint64_t serial,
                                                                 base::Deadline deadline) {
  const auto lookup = std::make_shared<Lookup>(Lookup{.deadline = deadline, .peer = peer});
  Status status = ask(lookup, control::FrameOp::import, control::encode_import(name, serial), name);
  if (!status.ok()) return status;
  if (lookup->region == nullptr) return unexpected_answer();
  return std::move(lookup->region);
}

/// Sends a request and waits for the answer. On return the lookup belongs to the caller alone: it
/// has left lookups_, and a late reply is ignored.
Status EngineImpl::ask(const std::shared_ptr<Lookup>& lookup, control::FrameOp op,
                       std::span<const std::byte> question, std::string_view name) {
  {
    const base::MutexLock lock(events_mutex_);
    lookup->id = ++last_lookup_;
    lookups_[lookup->id] = lookup;
  }
  // After the entry was made, so that a close() that begins now finds it.
  const auto session = session_of(lookup->peer);
  Status status = session == nullptr ? Status(Code::disconnected, Scope::peer,
                                              "peer " + std::to_string(lookup->peer) +
                                                  " is gone or is being "
                                                  "closed")
                                     : session->send(op, lookup->id, question);
  const base::MutexLock lock(events_mutex_);
  bool interrupted = false;
  while (status.ok() && !lookup->answer && !closed_ && !interrupted && !lookup->deadline.passed())
    interrupted = base::wait_or_interrupted(event_, events_mutex_, lookup->deadline);
  lookups_.erase(lookup->id);
  if (!status.ok()) return status;
  if (lookup->answer) return *lookup->answer;
  if (closed_) return {Code::canceled, Scope::process, "the Engine is closed"};
  if (interrupted) return base::interrupted();
  return {
      Code::timed_out, Scope::request,
      "peer " + std::to_string(lookup->peer) + " did not answer for " + quoted(name) + " in time"};
}

std::shared_ptr<control::Session> EngineImpl::session_of(std::uint64_t peer) {
  const base::MutexLock lock(scheduler_.mutex);
  const PeerRecord* record = scheduler_.find_peer(peer);
  return record == nullptr || record->closing ? nullptr : record->session;
}

void EngineImpl::on_set_reply(control::Session& session, std::uint64_t request,
                              memory::PublishedSet set) {
  const base::MutexLock lock(events_mutex_);
  const auto found = lookups_.find(request);
  if (found == lookups_.end() || found->second->peer != session.id() || found->second->answer)
    return;  // gave up, or never asked
  found->second->set = std::move(set);
  found->second->answer = Status();
  event_.notify_all();
}

void EngineImpl::on_import_reply(control::Session& session, std::uint64_t request,
                                 Result<control::ExportedRegion> answer) {
  if (!expects(session.id(), request)) return;  // gave up, or never asked
  // Shared: a task can be copied, its fds cannot.
  auto kept = std::make_shared<Result<control::ExportedRegion>>(std::move(answer));
  opener_.run(
      [this, peer = PeerIdentity(session), request, kept] { finish_import(peer, request, *kept); });
}

bool EngineImpl::expects(std::uint64_t peer, std::uint64_t request) {
  if ((request & Rendezvous::kBySerial) != 0) {
    const std::uint64_t serial = request & ~Rendezvous::kBySerial;
    {
      const base::MutexLock lock(scheduler_.mutex);
      if (!scheduler_.rendezvous().awaits(peer, serial)) return false;
    }
    const base::MutexLock lock(events_mutex_);
    return by_serial_.emplace(peer, serial).second;
  }
  const base::MutexLock lock(events_mutex_);
  const auto found = lookups_.find(request);
  if (found == lookups_.end() || found->second->peer != peer) return false;
  return !std::exchange(found->second->opening, true);
}

void EngineImpl::finish_import(const PeerIdentity& peer, std::uint64_t request,
                               Result<control::ExportedRegion>& answer) {
  if ((request & Rendezvous::kBySerial) != 0) return finish_import_by_serial(peer, request, answer);
  std::shared_ptr<Lookup> lookup;
  {
    const base::MutexLock lock(events_mutex_);
    const auto found = lookups_.find(request);
    if (found == lookups_.end() || found->second->peer != peer.id) return;  // gave up
    lookup = found->second;
  }
  Result<std::shared_ptr<ImportedRegion>> result = answer.status();
  if (answer.ok()) result = counted(peer, import(peer, *answer, lookup->deadline));
  const base::MutexLock lock(events_mutex_);
  if (lookup->answer) return;
  lookup->answer = result.status();
  if (result.ok()) lookup->region = *std::move(result);
  event_.notify_all();
}

}  // namespace linkspan::engine
