// engine/captures/captured_state.hpp - the state behind a CapturedTransfer: open, closing, quiet.
//
// On the path of a byte: not; its CapturedCopy is.
// open: each launch copies. closing: the gate is closed, a launch may still copy. quiet: none does,
// and none will.
// Threads: under the CaptureService's mutex, except what is immutable after construction.
// Invariants: the regions are in use until it is quiet.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "copy/captured_copy.hpp"
#include "engine/transfers/transfer.hpp"

namespace linkspan::engine {

/// The regions that launches copy between. Releases them at its end, without a lock.
struct CapturedRegions {
  CapturedRegions() = default;
  CapturedRegions(CapturedRegions&&) noexcept = default;
  CapturedRegions& operator=(CapturedRegions&& other) noexcept {
    local.swap(other.local);
    remote.swap(other.remote);
    keepalives.swap(other.keepalives);
    return *this;
  }
  CapturedRegions(const CapturedRegions&) = delete;
  CapturedRegions& operator=(const CapturedRegions&) = delete;
  ~CapturedRegions() {
    for (const auto& region : local) region->release();
  }

  /// A peer's region, and the transport that maps it.
  struct Remote {
    std::shared_ptr<ImportedRegion> region;  // also the user's
    std::size_t transport = 0;
    bool alive() const { return region->mappings[transport]->alive(); }
  };

  std::vector<std::shared_ptr<const memory::Registration>> local;  // acquired; also the registry's
  std::vector<Remote> remote;
  std::vector<std::shared_ptr<const void>> keepalives;  // of the mappings; also the transport's
};

struct CapturedState {
  CapturedState(std::uint64_t to, std::uint64_t size, std::shared_ptr<copy::CapturedCopy> node,
                std::span<const std::byte> message, CapturedRegions in_use)
      : peer(to),
        bytes(size),
        copy(std::move(node)),
        notification(message.begin(), message.end()),
        regions(std::move(in_use)) {}

  /// Returns true if nothing is left to do but to wait for the graph's end.
  bool drained() const noexcept { return quiet && notified >= copy->completed(); }

  const std::uint64_t peer, bytes;
  const std::shared_ptr<copy::CapturedCopy> copy;  // also the CapturedCopy's Orphans'
  const std::vector<std::byte> notification;
  CapturedRegions regions;
  Status end;  // OK: open
  bool quiet = false;
  std::uint64_t notified = 0;  // completed launches that were looked at
};

}  // namespace linkspan::engine
