// transport/verbs/verbs_transport.hpp - the transport by RDMA over libibverbs: InfiniBand and RoCE.
//
// The network cards write to and read from the memory of both sides; no thread of the peer's takes
// part. A batch is complete when the peer's card has acknowledged it. For host memory that counts
// as applied: the acknowledgement follows the data, and what the peer learns of the end comes later
// by another connection, over which the engine also sends the notification.
// A key has no remote keys of devices. A peer asks for those with the region's token over the
// Channel (requested_access.hpp), so each Engine knows which peers can reach a region, and takes
// the access back before the memory goes away.
// Threads: as transport.hpp says; what Endpoints call is marked.
// Invariants: once retract() returned OK no device has the region's memory registered.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include "base/clock.hpp"
#include "base/executor.hpp"
#include "transport/transport.hpp"
#include "transport/verbs/access_table.hpp"
#include "transport/verbs/address.hpp"
#include "transport/verbs/flush_queue.hpp"
#include "transport/verbs/memory_keys.hpp"
#include "transport/verbs/request_queue.hpp"
#include "transport/wire_region.hpp"

namespace linkspan::transport::verbs {

struct VerbsOptions {
  std::vector<Rail> rails;  ///< At least one.
  VerbsSettings settings{};
  cuda::Topology* topology = nullptr;  ///< Null: no GPU.
  std::uint64_t incarnation = 0;       ///< This Engine's.
  SendLimits limits{};
  const base::Clock* clock = &base::Clock::steady();  ///< Clock of an Endpoint's bounds.
  decltype(nearness)* nearness_of = nearness;
};

class VerbsTransport final : public Transport {
 public:
  explicit VerbsTransport(VerbsOptions options);
  VerbsTransport(const VerbsTransport&) = delete;
  VerbsTransport& operator=(const VerbsTransport&) = delete;
  ~VerbsTransport() override;

  std::string_view name() const noexcept override { return "verbs"; }
  const Capabilities& capabilities() const noexcept override { return capabilities_; }
  Result<memory::PublishedKey> publish(const memory::Region& region) override;
  Status retract(const memory::Region& region, bool at_once) override;
  Status forget(const memory::Region& region) override { return retract(region, true); }
  Result<std::unique_ptr<Mapping>> import_key(RemoteKey key, base::Deadline deadline) override {
    return WireMapping::import(key, deadline);
  }
  std::vector<CopyCount> copies() const override;
  std::vector<std::byte> address() const override { return encode(address_); }
  Result<std::unique_ptr<Endpoint>> connect(std::span<const std::byte> address, Channel& channel,
                                            base::Deadline deadline) override;

  // Any thread, for Endpoints:
  RegionUse use(std::uint64_t serial) { return published_.use(serial); }
  /// Returns null if the region is not registered with the devices.
  std::shared_ptr<const MemoryKeys> keys(std::uint64_t serial) const LINKSPAN_EXCLUDES(mutex_);
  AccessTable& accesses() noexcept { return accesses_; }
  Result<WireBatch> check(const Batch& batch, std::uint64_t peer) {
    return wire_batch(batch, published_, peer, capabilities_, true);
  }
  std::vector<PathRefusal> refused(const memory::Region& local, const Mapping& remote) const {
    return published_.refused(local, remote);
  }
  const VerbsOptions& options() const noexcept { return options_; }
  const VerbsAddress& rails() const noexcept { return address_; }
  base::Executor& executor() noexcept { return executor_; }
  GpuFlush gpu_flush() const noexcept { return GpuFlush(options_.topology); }
  /// Handles the devices' events, now and then.
  void handle_events(base::Time now) noexcept;
  void count(std::size_t blocks) noexcept {
    ++orders_;
    blocks_ += blocks;
  }

 private:
  struct Registered {
    std::shared_ptr<const MemoryKeys> keys;  // shared with batches
    std::shared_ptr<WireRegion> region;      // shared with the table and batches
  };

  const VerbsOptions options_;
  VerbsAddress address_;                               // of this side
  std::vector<std::shared_ptr<VerbsDevice>> devices_;  // of the rails, each once
  Capabilities capabilities_;
  std::atomic<std::uint64_t> orders_{0}, blocks_{0};
  std::atomic<base::Time::rep> next_events_{0};
  WireRegionTable published_;
  AccessTable accesses_;
  mutable base::Mutex mutex_;
  std::map<std::uint64_t, Registered> registered_ LINKSPAN_GUARDED_BY(mutex_);  // by serial
  base::Executor executor_;  // last member: its tasks hold devices
};

}  // namespace linkspan::transport::verbs
