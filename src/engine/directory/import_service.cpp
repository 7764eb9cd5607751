#include "engine/directory/import_service.hpp"

#include <utility>

#include "base/interrupt.hpp"
#include "engine/diagnostics/report.hpp"
#include "memory/descriptor.hpp"

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

ImportService::Imported ImportService::lookup(std::uint64_t peer, std::string_view name,
                                              Duration timeout) {
  if (Status status = check_name(name); !status.ok()) return status;
  return import_named(peer, name, 0, base::Deadline::in(timeout));
}

Result<ImportService::ImportedSet> ImportService::lookup_set(std::uint64_t peer,
                                                             std::string_view name,
                                                             Duration timeout) {
  if (Status status = check_name(name); !status.ok()) return status;
  const base::Deadline deadline = base::Deadline::in(timeout);
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
    failed = {};
    for (std::size_t i = 0; failed.ok() && i < set->serials.size(); ++i) {
      auto region = import_named(peer, name, set->serials[i], deadline);
      failed = region.status();
      if (region.ok()) found.regions.push_back(*std::move(region));
    }
    if (failed.ok()) return found;
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
  Status status = ask(lookup, control::FrameOp::ask_set, encode(question), question.name);
  const bool gives_up =
      question.waits && (status.code() == Code::timed_out || status.code() == Code::canceled);
  if (const auto session = gives_up ? peers_.session_of(peer) : nullptr; session != nullptr) {
    (void)session->send(control::FrameOp::ask_set, lookup->id, encode(control::AskSet{}));
  }
  if (!status.ok()) return status;
  if (lookup->set.serials.empty()) return unexpected_answer();
  return std::move(lookup->set);
}

ImportService::Imported ImportService::import_named(std::uint64_t peer, std::string_view name,
                                                    std::uint64_t serial, base::Deadline deadline) {
  const auto lookup = std::make_shared<Lookup>(Lookup{.deadline = deadline, .peer = peer});
  Status status = ask(lookup, control::FrameOp::import, control::encode_import(name, serial), name);
  if (!status.ok()) return status;
  if (lookup->region == nullptr) return unexpected_answer();
  return std::move(lookup->region);
}

/// Sends a request and waits for the answer. On return the lookup belongs to the caller alone: it
/// has left lookups_, and a late reply is ignored.
Status ImportService::ask(const std::shared_ptr<Lookup>& lookup, control::FrameOp op,
                          std::span<const std::byte> question, std::string_view name) {
  {
    const base::MutexLock lock(mutex_);
    lookup->id = ++last_lookup_;
    lookups_[lookup->id] = lookup;
  }
  // After the entry was made, so that a close() that begins now finds it.
  const auto session = peers_.session_of(lookup->peer);
  Status status = session == nullptr ? Status(Code::disconnected, Scope::peer,
                                              "peer " + std::to_string(lookup->peer) +
                                                  " is gone or is being "
                                                  "closed")
                                     : session->send(op, lookup->id, question);
  const base::MutexLock lock(mutex_);
  bool interrupted = false;
  while (status.ok() && !lookup->answer && !closed_ && !interrupted && !lookup->deadline.passed())
    interrupted = base::wait_or_interrupted(answered_, mutex_, lookup->deadline);
  lookups_.erase(lookup->id);
  if (!status.ok()) return status;
  if (lookup->answer) return *lookup->answer;
  if (closed_) return {Code::canceled, Scope::process, "the Engine is closed"};
  if (interrupted) return base::interrupted();
  return {
      Code::timed_out, Scope::request,
      "peer " + std::to_string(lookup->peer) + " did not answer for " + quoted(name) + " in time"};
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

/// Maps the region and counts that for metrics() and dump().
ImportService::Imported ImportService::import(const PeerIdentity& peer,
                                              control::ExportedRegion& exported,
                                              base::Deadline deadline) {
  auto region = map(peer, exported, deadline);
  if (const auto scheduler = peers_.find(peer.id))
    scheduler->count_import(region.ok() ? *region : nullptr);
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
