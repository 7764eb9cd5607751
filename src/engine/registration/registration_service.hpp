// engine/registration/registration_service.hpp - the regions of this side: registration, their end,
// and their keys for peers.
//
// Off the path of a byte.
// Threads: any thread; add() and end() may take milliseconds.
// Invariants: a region whose end returned OK is mapped by no peer and used by no transfer.
#pragma once

#include <map>
#include <memory>
#include <string_view>

#include "base/mutex.hpp"
#include "engine/captures/capture_service.hpp"
#include "engine/engine_context.hpp"
#include "engine/peers/peer_table.hpp"
#include "engine/transfers/region_pairs.hpp"
#include "engine/transfers/stream_order.hpp"

namespace linkspan::engine {

class RegistrationService {
 public:
  using Registered = Result<std::shared_ptr<const memory::Registration>>;

  /// The arguments outlive this object.
  RegistrationService(const EngineContext& context, StreamOrders& streams, PeerTable& peers,
                      RegionPairsCache& pairs, CaptureService& captures)
      : context_(context), streams_(streams), peers_(peers), pairs_(pairs), captures_(captures) {}

  Registered add(void* pointer, std::uint64_t bytes, const RegionOptions& options)
      LINKSPAN_EXCLUDES(mutex_);
  Registered allocate_shared(std::uint64_t bytes, const RegionOptions& options)
      LINKSPAN_EXCLUDES(mutex_);
  /// Takes the region's name and its keys back, so that no peer can import it any more; the first
  /// step of end().
  Status unpublish(const Region& region) LINKSPAN_EXCLUDES(mutex_);
  /// Ends a registration, once no peer and no transfer uses it. `immediately` cancels transfers on
  /// it, and makes peers unmap it. Captured posts on it end in any case. busy: it is still used at
  /// the time-out.
  Status end(const Region& region, Duration timeout, bool immediately) LINKSPAN_EXCLUDES(mutex_);

  /// Returns null if the region is being deregistered.
  std::shared_ptr<const Keys> keys_of(std::uint64_t serial) const LINKSPAN_EXCLUDES(mutex_);
  /// Returns the region published as `name` for that peer; of a set, the region with that serial.
  Result<control::ExportedRegion> export_named(const control::Session& session,
                                               std::string_view name, std::uint64_t serial)
      LINKSPAN_EXCLUDES(mutex_);
  /// Returns a region that a message has offered to that peer.
  Result<control::ExportedRegion> export_offered(const control::Session& session,
                                                 std::uint64_t serial) LINKSPAN_EXCLUDES(mutex_);
  void close() LINKSPAN_EXCLUDES(mutex_);  ///< Refuses further registrations.

 private:
  Registered admit(Registered registration) LINKSPAN_EXCLUDES(mutex_);

  const EngineContext& context_;
  StreamOrders& streams_;
  PeerTable& peers_;
  RegionPairsCache& pairs_;
  CaptureService& captures_;
  mutable base::Mutex mutex_;
  // Keys of each region that the user registered, by serial; shared with threads that send them.
  std::map<std::uint64_t, std::shared_ptr<const Keys>> keys_ LINKSPAN_GUARDED_BY(mutex_);
  bool closed_ LINKSPAN_GUARDED_BY(mutex_) = false;
};

}  // namespace linkspan::engine
