// transport/local/mapping_cache.hpp - maps peers' memory: each allocation once, whatever the number
// of regions in it.
//
// Off the path of a byte. Functions take milliseconds; another thread that opens the same
// allocation is waited for, until the deadline. Threads: any thread. Invariants: what a key claims
// is measured before it is used.
#pragma once

#include <memory>
#include <utility>

#include "cuda/shared_range.hpp"
#include "memory/import_cache.hpp"
#include "transport/local/mapping.hpp"

namespace linkspan::transport::local {

class MappingCache {
 public:
  /// `topology` is null without a GPU. It outlives this object.
  MappingCache(const cuda::Topology* topology, const ImportBudget::ImportLimits& limits)
      : topology_(topology), budget_(limits) {}

  ImportBudget& budget() noexcept { return budget_; }
  /// Returns the table that is behind `fd`. corrupt: that Engine's earlier keys had another one.
  Result<std::shared_ptr<RegionLivenessView>> liveness_of(std::uint64_t incarnation,
                                                          const base::Fd& fd);
  Status map_host(ImportedMemory& memory, const base::Fd& memfd, const ImportBudget::Owner& owner,
                  base::Deadline deadline);
  /// Maps chunks or pool memory whole for all later GPUs, because the fds exist only during the
  /// import.
  Status map_range(ImportedMemory& memory, const base::Fd& fd, const cuda::Device& device,
                   base::Deadline deadline);
  /// Gives access to a GPU that came up after the import, as far as it can: a failure costs speed,
  /// not the transfer, and explain() shows it.
  void map_on(ImportedMemory& memory, const cuda::Device& device, base::Deadline deadline);
  /// Gives a GPU access to the memory.
  Status add_view(ImportedMemory& memory, const cuda::Device& device, base::Deadline deadline);

 private:
  const cuda::Topology* const topology_;
  ImportBudget budget_;  // declared before the owners of its Shares
  memory::ImportCache<memory::ImportKey, RegionLivenessView> liveness_views_;
  memory::ImportCache<memory::ImportKey, HostMapping> host_mappings_;
  /// The handle is part of the key: it alone opens the memory, whatever else the key claims.
  using IpcKey = std::pair<memory::ImportKey, cuda::IpcHandle>;
  memory::ImportCache<IpcKey, cuda::IpcMapping> ipc_mappings_;
  memory::ImportCache<memory::ImportKey, cuda::SharedRange> ranges_;  // each for all devices
};

}  // namespace linkspan::transport::local
