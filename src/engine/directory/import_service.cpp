#include "engine/directory/import_service.hpp"

#include <deque>
#include <utility>

#include "base/interrupt.hpp"
#include "engine/diagnostics/report.hpp"
#include "memory/descriptor.hpp"

namespace linkspan::engine {
namespace {

/// Bounds the regions that are asked for at once: their answers may take file descriptors.
constexpr std::size_t kMaxAsked = 16;

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

ImportService::Imported ImportService::lookup(std::uint64_t peer, std::string_view name,
                                              Duration timeout) {
  if (Status status = check_name(name); !status.ok()) return status;
  const RegionName region{name};
  auto all = import_all(peer, std::span(&region, 1), base::Deadline::in(timeout));
  if (!all.ok()) return all.status();
  return std::move(all->front());
}

ImportService::AllImported ImportService::lookup_all(std::uint64_t peer,
                                                     std::span<const std::string> names,
                                                     Duration timeout) {
  std::vector<RegionName> regions;
  for (const std::string& name : names) {
    if (Status status = check_name(name); !status.ok()) return status;
    regions.push_back({name});
  }
  return import_all(peer, regions, base::Deadline::in(timeout));
}

Result<ImportService::ImportedSet> ImportService::lookup_set(
    std::uint64_t peer, std::string_view name, Duration timeout,
    std::span<const std::shared_ptr<ImportedRegion>> known) {
  if (Status status = check_name(name); !status.ok()) return status;
  const base::Deadline deadline = base::Deadline::in(timeout);
  std::map<std::uint64_t, std::shared_ptr<ImportedRegion>> imported;  // by serial
  for (const auto& each : known)
    if (each != nullptr && each->peer == peer) imported.emplace(each->serial, each);
  ImportedSet found;
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
    if (set->version == found.version) return failed;  // not caused by a newer version
    found = {.version = set->version, .regions = {}};
    std::vector<RegionName> missing;
    for (const std::uint64_t serial : set->serials)
      if (imported.try_emplace(serial).second) missing.push_back({name, serial});
    auto regions = import_all(peer, missing, deadline);
    failed = regions.status();
    for (std::size_t i = 0; i < missing.size(); ++i) {
      if (failed.ok())
        imported[missing[i].serial] = std::move((*regions)[i]);
      else
        imported.erase(missing[i].serial);
    }
    if (failed.ok()) {
      for (const std::uint64_t serial : set->serials) found.regions.push_back(imported[serial]);
      return found;
    }
    if (InterruptCheck::has_ended()) return base::interrupted();
  }
}

Result<std::uint64_t> ImportService::await_version(std::uint64_t peer, std::string_view name,
                                                   std::uint64_t above, Duration timeout) {
  if (Status status = check_name(name); !status.ok()) return status;
  auto set = ask_for_set(peer, {.name = std::string(name), .above = above, .waits = true},
                         base::Deadline::in(timeout));
  if (set.ok()) return set->version;
  if (set.status().code() != Code::timed_out) return set.status();
  return Status(Code::timed_out, Scope::request,
                "peer " + std::to_string(peer) + " has published no " + quoted(name) +
                    " above version " + std::to_string(above) + " in time");
}

Result<memory::PublishedSet> ImportService::ask_for_set(std::uint64_t peer,
                                                        const control::AskSet& question,
                                                        base::Deadline deadline) {
  // Shared with the Control thread, which answers.
  const auto lookup = std::make_shared<Lookup>(Lookup{.deadline = deadline, .peer = peer});
  Status status =
      await(*lookup, send(lookup, control::FrameOp::ask_set, encode(question)), question.name);
  const bool gives_up =
      question.waits && (status.code() == Code::timed_out || status.code() == Code::canceled);
  if (const auto session = gives_up ? peers_.session_of(peer) : nullptr; session != nullptr) {
    (void)session->send(control::FrameOp::ask_set, lookup->id, encode(control::AskSet{}));
  }
  if (!status.ok()) return status;
  if (lookup->set.serials.empty()) return unexpected_answer();
  return std::move(lookup->set);
}

/// Imports the regions, of which some are asked for while answers of others are awaited. An error
/// is that of the first region that has one.
ImportService::AllImported ImportService::import_all(std::uint64_t peer,
                                                     std::span<const RegionName> regions,
                                                     base::Deadline deadline) {
  struct Asked {
    std::shared_ptr<Lookup> lookup;
    Status sent;
    std::string_view name;
  };
  std::deque<Asked> asked;
  const std::shared_ptr<void> forget(nullptr, [&](void*) {  // if memory ends before their await()
    const base::MutexLock lock(mutex_);
    for (const Asked& each : asked) lookups_.erase(each.lookup->id);
  });
  std::vector<std::shared_ptr<ImportedRegion>> imported;
  imported.reserve(regions.size());
  Status failed;
  for (auto next = regions.begin(); !asked.empty() || (next != regions.end() && failed.ok());) {
    if (next != regions.end() && failed.ok() && asked.size() < kMaxAsked) {
      asked.push_back(
          {std::make_shared<Lookup>(Lookup{.deadline = deadline, .peer = peer}), {}, next->name});
      Asked& last = asked.back();
      last.sent = send(last.lookup, control::FrameOp::import,
                       control::encode_import(next->name, next->serial));
      ++next;
      continue;
    }
    const Asked first = std::move(asked.front());
    asked.pop_front();
    Status status = await(*first.lookup, failed.ok() ? first.sent : failed, first.name);
    if (status.ok() && first.lookup->region == nullptr) status = unexpected_answer();
    if (failed.ok()) failed = status;
    if (status.ok()) imported.push_back(std::move(first.lookup->region));
  }
  if (!failed.ok()) return failed;
  return imported;
}

/// Sends a request, whose answer await() returns. Must be followed by await(), also on an error.
Status ImportService::send(const std::shared_ptr<Lookup>& lookup, control::FrameOp op,
                           std::span<const std::byte> question) {
  {
    const base::MutexLock lock(mutex_);
    lookup->id = ++last_lookup_;
    lookups_[lookup->id] = lookup;
  }
  // After the entry was made, so that a close() that begins now finds it.
  const auto session = peers_.session_of(lookup->peer);
  if (session != nullptr) return session->send(op, lookup->id, question);
  return {Code::disconnected, Scope::peer,
          "peer " + std::to_string(lookup->peer) + " is gone or is being closed"};
}

/// Waits for the answer to a request unless `sent` is an error. On return the lookup belongs to the
/// caller alone: it has left lookups_, and a late reply is ignored.
Status ImportService::await(Lookup& lookup, const Status& sent, std::string_view name) {
  const base::MutexLock lock(mutex_);
  bool interrupted = false;
  while (sent.ok() && !lookup.answer && !closed_ && !interrupted && !lookup.deadline.passed())
    interrupted = base::wait_or_interrupted(answered_, mutex_, lookup.deadline);
  lookups_.erase(lookup.id);
  if (!sent.ok()) return sent;
  if (lookup.answer) return *lookup.answer;
  if (closed_) return {Code::canceled, Scope::process, "the Engine is closed"};
  if (interrupted) return base::interrupted();
  return {
      Code::timed_out, Scope::request,
      "peer " + std::to_string(lookup.peer) + " did not answer for " + quoted(name) + " in time"};
}

void ImportService::on_set_reply(const control::Session& session, std::uint64_t request,
                                 memory::PublishedSet set) {
  const base::MutexLock lock(mutex_);
  const auto found = lookups_.find(request);
  if (found == lookups_.end() || found->second->peer != session.id() || found->second->answer)
    return;  // gave up, or never asked
  found->second->set = std::move(set);
  found->second->answer = Status();
  answered_.notify_all();
}

void ImportService::on_import_reply(const control::Session& session, std::uint64_t request,
                                    Result<control::ExportedRegion> answer) {
  if (!expects(session.id(), request)) return;  // gave up, or never asked
  // Shared: a task can be copied, its fds cannot.
  auto kept = std::make_shared<Result<control::ExportedRegion>>(std::move(answer));
  opener_.run(
      [this, peer = PeerIdentity(session), request, kept] { finish(peer, request, *kept); });
}

bool ImportService::expects(std::uint64_t peer, std::uint64_t request) {
  if ((request & Rendezvous::kBySerial) != 0) {
    const std::uint64_t serial = request & ~Rendezvous::kBySerial;
    const auto scheduler = peers_.find(peer);
    if (scheduler == nullptr || !scheduler->awaits_import(serial)) return false;
    const base::MutexLock lock(mutex_);
    return by_serial_.emplace(peer, serial).second;
  }
  const base::MutexLock lock(mutex_);
  const auto found = lookups_.find(request);
  if (found == lookups_.end() || found->second->peer != peer) return false;
  return !std::exchange(found->second->opening, true);
}

void ImportService::finish(const PeerIdentity& peer, std::uint64_t request,
                           Result<control::ExportedRegion>& answer) {
  if ((request & Rendezvous::kBySerial) != 0)
    return finish_by_serial(peer, request & ~Rendezvous::kBySerial, answer);
  std::shared_ptr<Lookup> lookup;
  {
    const base::MutexLock lock(mutex_);
    const auto found = lookups_.find(request);
    if (found == lookups_.end() || found->second->peer != peer.id) return;  // gave up
    lookup = found->second;
  }
  Imported result = answer.status();
  if (answer.ok()) result = import(peer, *answer, lookup->deadline);
  const base::MutexLock lock(mutex_);
  if (lookup->answer) return;
  lookup->answer = result.status();
  if (result.ok()) lookup->region = *std::move(result);
  answered_.notify_all();
}

void ImportService::finish_by_serial(const PeerIdentity& peer, std::uint64_t serial,
                                     Result<control::ExportedRegion>& answer) {
  {
    const base::MutexLock lock(mutex_);
    by_serial_.erase({peer.id, serial});  // it may ask, and be answered, once more
  }
  const auto scheduler = peers_.find(peer.id);
  if (scheduler == nullptr || !scheduler->awaits_import(serial)) return;
  Imported region = answer.status();
  if (answer.ok())
    region = import(peer, *answer, base::Deadline::in(context_.options.connect_deadline));
  (void)scheduler->on_message_frame([&](Rendezvous& messages) {
    messages.on_imported(serial, region);
    return Status();
  });
  context_.progress->wake();
}

ImportService::Imported ImportService::import_offered(const control::Session& session,
                                                      control::ExportedRegion exported) {
  return import(PeerIdentity(session), exported,
                base::Deadline::in(context_.options.connect_deadline));
}

void ImportService::end_lookups(std::uint64_t peer, const Status& why) {
  const base::MutexLock lock(mutex_);
  for (auto& [id, lookup] : lookups_)
    if (lookup->peer == peer && !lookup->answer) lookup->answer = why;
  answered_.notify_all();
}

void ImportService::close() {
  const base::MutexLock lock(mutex_);
  closed_ = true;
  answered_.notify_all();
}

/// Maps the region and counts that for metrics() and dump(). Returns it as its user owns it.
ImportService::Imported ImportService::import(const PeerIdentity& peer,
                                              control::ExportedRegion& exported,
                                              base::Deadline deadline) {
  auto region = map(peer, exported, deadline);
  if (const auto scheduler = peers_.find(peer.id))
    scheduler->count_import(region.ok() ? *region : nullptr);
  if (region.ok()) region = pairs_.owned_by_user(*std::move(region));
  return region;
}

ImportService::Imported ImportService::map(const PeerIdentity& peer,
                                           control::ExportedRegion& exported,
                                           base::Deadline deadline) {
  auto descriptor = memory::decode(exported.descriptor);
  if (!descriptor.ok()) return descriptor.status();
  if (descriptor->id.incarnation != peer.incarnation)
    return Status(Code::corrupt, Scope::peer, "a descriptor of another Engine's region");
  // Shared: the user's RemoteRegion and transfers in flight.
  auto imported = std::make_shared<ImportedRegion>();
  imported->peer = peer.id;
  imported->incarnation = peer.incarnation;
  imported->serial = descriptor->id.serial;
  imported->name = descriptor->name;
  imported->kind = descriptor->kind;
  imported->bytes = descriptor->bytes;
  imported->peers = descriptor->peers;
  imported->mappings.resize(context_.transports.size());
  std::span<base::Fd> fds(exported.fds);
  Status refused;
  bool any = false;
  for (const memory::Descriptor::TransportKey& key : descriptor->keys) {
    if (key.fd_count > fds.size())
      return Status(Code::corrupt, Scope::peer, "a key came without its fds");
    const auto of_key = fds.first(key.fd_count);
    fds = fds.subspan(key.fd_count);
    for (std::size_t i = 0; i < context_.transports.size(); ++i) {
      if (context_.transports[i]->name() != key.transport ||
          !reaches(*context_.transports[i], peer.remote))
        continue;
      auto mapping = context_.transports[i]->import_key(
          {key.bytes, of_key, peer.incarnation, peer.this_process, peer.pid}, deadline);
      if (mapping.ok() && (*mapping)->bytes() != descriptor->bytes)
        return Status(Code::corrupt, Scope::peer, "a key and its descriptor differ in size");
      if (mapping.ok()) {
        imported->mappings[i] = *std::move(mapping);
        any = true;
      } else if (!is_declined(mapping.status())) {
        return mapping.status();
      } else if (refused.ok()) {
        refused = mapping.status();
      }
    }
  }
  streams_.make_ready();  // to reach it, GPUs may have come up
  if (any) return imported;
  if (!refused.ok()) return refused;
  return Status(Code::unreachable, Scope::request,
                "\"" + imported->name + "\" has a key for no transport of ours");
}

}  // namespace linkspan::engine
