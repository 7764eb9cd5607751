// transport/nccl_net/nccl_net_transport.hpp - the transport over a network plugin of NCCL's, such
// as GPUDirect-TCPX.
//
// A plugin only sends and receives; writes and reads are built from that: the receiving side posts
// its receives and says so over the Channel (endpoint.hpp). Queues, one comm each, are made when
// the first transfer between two GPUs, or host memories, needs them.
// Threads: as transport.hpp says; what Endpoints call is marked.
// Invariants: once retract() returned OK the plugin has no registration of the region's memory.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "copy/staging.hpp"
#include "transport/nccl_net/address.hpp"
#include "transport/nccl_net/options.hpp"
#include "transport/nccl_net/plugin_thread.hpp"
#include "transport/transport.hpp"
#include "transport/wire_region.hpp"

namespace linkspan::transport::nccl_net {

struct NcclNetOptions {
  std::shared_ptr<Plugin> plugin;      ///< Shared with the process.
  cuda::Topology* topology = nullptr;  ///< Null: no GPU.
  std::uint64_t incarnation = 0;       ///< This Engine's.
  std::optional<Unpack> unpack{};
  std::optional<unsigned> copy_ctas{};                ///< As in the local transport.
  const base::Clock* clock = &base::Clock::steady();  ///< Clock of the bounds of endpoint.hpp.
};

class NcclNetTransport final : public Transport {
 public:
  /// not_found: the plugin has no device.
  static Result<std::unique_ptr<Transport>> create(NcclNetOptions options);

  std::string_view name() const noexcept override { return "nccl_net"; }
  const Capabilities& capabilities() const noexcept override { return capabilities_; }
  Result<memory::PublishedKey> publish(const memory::Region& region) override;
  Status retract(const memory::Region& region, bool at_once) override;
  Status forget(const memory::Region& region) override { return retract(region, true); }
  Result<std::unique_ptr<Mapping>> import_key(RemoteKey key, base::Deadline deadline) override {
    return WireMapping::import(key, deadline);
  }
  std::vector<CopyCount> copies() const override;
  std::vector<std::byte> address() const override;
  Result<std::unique_ptr<Endpoint>> connect(std::span<const std::byte> address, Channel& channel,
                                            base::Deadline deadline) override;

  // Any thread, for Endpoints:
  RegionUse use(std::uint64_t serial) { return published_.use(serial); }
  std::vector<PathRefusal> refused(const memory::Region& local, const Mapping& remote) const {
    return published_.refused(local, remote);
  }
  Result<WireBatch> check(const Batch& batch, std::uint64_t peer) {
    return wire_batch(batch, published_, peer, capabilities_);
  }
  /// Returns OK, or why such memory is not supported and what helps.
  Status check_memory(const memory::Region::Facts& facts) const;
  /// Returns true for memory of a GPU whose nearest NIC takes host memory only.
  bool stages(const memory::Region::Facts& facts) const {
    return facts.kind == MemoryKind::device && !device(facts.gpu).supports(abi::kCuda);
  }
  /// Returns the attributes of a queue that is opened now, for memory of `device`; null: host
  /// memory.
  QueueAttributes queue_attributes(const cuda::Device* device);
  const NcclNetOptions& options() const noexcept { return options_; }
  const Properties& device(const GpuUuid& gpu) const noexcept {
    return options_.plugin->devices()[static_cast<std::size_t>(nic(gpu))];
  }
  std::uint64_t max_message() const noexcept { return max_message_; }  ///< Bytes, at most.
  PluginThreads& threads() noexcept { return threads_; }
  void count(std::size_t blocks) noexcept {
    ++orders_;
    blocks_ += blocks;
  }

 private:
  explicit NcclNetTransport(NcclNetOptions options);
  /// Returns the plugin's device for memory of that GPU; the first one for host memory.
  int nic(const GpuUuid& gpu) const noexcept;

  const NcclNetOptions options_;
  std::map<GpuUuid, int> nics_;
  Capabilities capabilities_;
  std::uint64_t max_message_ = 0;
  std::atomic<std::uint64_t> orders_{0}, blocks_{0};
  WireRegionTable published_;
  copy::StagingStreams staging_streams_;
  PluginThreads threads_;  // last member: their queues use the plugin and the staging streams
};

}  // namespace linkspan::transport::nccl_net
