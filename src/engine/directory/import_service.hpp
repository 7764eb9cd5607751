// engine/directory/import_service.hpp - regions of peers: asks for them and maps them here.
//
// Off the path of a byte: an import takes milliseconds. The Control thread receives the answer, a
// thread of this service imports it, and the user's thread waits.
// Threads: any thread; functions named on_...() the Control thread.
// Invariants: a lookup is answered once; a late answer is ignored.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/executor.hpp"
#include "base/mutex.hpp"
#include "control/session.hpp"
#include "engine/engine_context.hpp"
#include "engine/peers/peer_table.hpp"
#include "engine/transfers/region_pairs.hpp"
#include "engine/transfers/stream_order.hpp"

namespace linkspan::engine {

class ImportService {
 public:
  using Imported = Result<std::shared_ptr<ImportedRegion>>;
  using AllImported = Result<std::vector<std::shared_ptr<ImportedRegion>>>;
  /// A version of a set, imported.
  struct ImportedSet {
    std::uint64_t version = 0;
    std::vector<std::shared_ptr<ImportedRegion>> regions;
  };

  /// The references outlive this object. An import that no user waits for ends after the options'
  /// connect_deadline.
  ImportService(const EngineContext& context, StreamOrders& streams, PeerTable& peers,
                RegionPairsCache& pairs)
      : context_(context), streams_(streams), peers_(peers), pairs_(pairs) {}

  Imported lookup(std::uint64_t peer, std::string_view name, Duration timeout)
      LINKSPAN_EXCLUDES(mutex_);
  AllImported lookup_all(std::uint64_t peer, std::span<const std::string> names, Duration timeout)
      LINKSPAN_EXCLUDES(mutex_);
  /// Regions of `known` that are in the set are not imported again.
  Result<ImportedSet> lookup_set(std::uint64_t peer, std::string_view name, Duration timeout,
                                 std::span<const std::shared_ptr<ImportedRegion>> known = {})
      LINKSPAN_EXCLUDES(mutex_);
  Result<std::uint64_t> await_version(std::uint64_t peer, std::string_view name,
                                      std::uint64_t above, Duration timeout)
      LINKSPAN_EXCLUDES(mutex_);
  /// Imports a key that came with a message. Returns null if none did.
  Imported import_offered(const control::Session& session, control::ExportedRegion exported);

  void on_set_reply(const control::Session& session, std::uint64_t request,
                    memory::PublishedSet set) LINKSPAN_EXCLUDES(mutex_);
  void on_import_reply(const control::Session& session, std::uint64_t request,
                       Result<control::ExportedRegion> answer) LINKSPAN_EXCLUDES(mutex_);
  /// Ends each wait for an answer of that peer with the status `why`.
  void end_lookups(std::uint64_t peer, const Status& why) LINKSPAN_EXCLUDES(mutex_);
  void close() LINKSPAN_EXCLUDES(mutex_);  ///< Ends all waits.
  void end() { opener_.end(); }            ///< Ends the thread. Imports nothing more.

 private:
  /// Identity of the replying peer, copied because its Session may be destroyed before the opener
  /// thread handles the reply.
  struct PeerIdentity {
    explicit PeerIdentity(const control::Session& session)
        : id(session.id()),
          incarnation(session.incarnation()),
          this_process(session.is_this_process()),
          pid(session.pid()),
          remote(session.is_remote()) {}
    std::uint64_t id, incarnation;
    bool this_process;
    std::int64_t pid;
    bool remote;
  };
  /// A request to a peer for a region or a set, and its answer.
  struct Lookup {
    base::Deadline deadline;
    std::uint64_t peer = 0, id = 0;
    std::optional<Status> answer{};
    std::shared_ptr<ImportedRegion> region{};  // also the user's
    memory::PublishedSet set{};
    bool opening = false;  // an answer is being imported; a second one is ignored
  };

  /// Names a region by its name, or by its serial unless that is 0.
  struct RegionName {
    std::string_view name;
    std::uint64_t serial = 0;
  };

  Status send(const std::shared_ptr<Lookup>& lookup, control::FrameOp op,
              std::span<const std::byte> question) LINKSPAN_EXCLUDES(mutex_);
  Status await(Lookup& lookup, const Status& sent, std::string_view name) LINKSPAN_EXCLUDES(mutex_);
  Result<memory::PublishedSet> ask_for_set(std::uint64_t peer, const control::AskSet& question,
                                           base::Deadline deadline) LINKSPAN_EXCLUDES(mutex_);
  AllImported import_all(std::uint64_t peer, std::span<const RegionName> regions,
                         base::Deadline deadline) LINKSPAN_EXCLUDES(mutex_);
  bool expects(std::uint64_t peer, std::uint64_t request) LINKSPAN_EXCLUDES(mutex_);
  void finish(const PeerIdentity& peer, std::uint64_t request,
              Result<control::ExportedRegion>& answer) LINKSPAN_EXCLUDES(mutex_);
  void finish_by_serial(const PeerIdentity& peer, std::uint64_t serial,
                        Result<control::ExportedRegion>& answer) LINKSPAN_EXCLUDES(mutex_);
  Imported import(const PeerIdentity& peer, control::ExportedRegion& exported,
                  base::Deadline deadline);
  Imported map(const PeerIdentity& peer, control::ExportedRegion& exported,
               base::Deadline deadline);

  const EngineContext& context_;
  StreamOrders& streams_;
  PeerTable& peers_;
  RegionPairsCache& pairs_;

  base::Mutex mutex_;
  base::Condition answered_;
  // Answers to imports by serial that opener_ has not handled, by peer and serial.
  std::set<std::pair<std::uint64_t, std::uint64_t>> by_serial_ LINKSPAN_GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::shared_ptr<Lookup>> lookups_ LINKSPAN_GUARDED_BY(mutex_);
  std::uint64_t last_lookup_ LINKSPAN_GUARDED_BY(mutex_) = 0;
  bool closed_ LINKSPAN_GUARDED_BY(mutex_) = false;
  // Runs imports, which take milliseconds and would delay the Control thread. Last, so that it ends
  // before the members that its tasks use.
  base::Executor opener_{base::kThreadNamed<"ls-opener">};
};

}  // namespace linkspan::engine
