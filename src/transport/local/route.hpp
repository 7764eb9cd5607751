// transport/local/route.hpp - decides which of the two sides copies, by which copier, through which
// mapping.
//
// On the path of a byte: between the checks of LocalEndpoint::post and the copier.
// Threads: pure functions.
// Invariants: a Route follows from its RouteFacts alone, so each rule is a row of a unit test.
#pragma once

#include <string>
#include <string_view>

#include "copy/chooser.hpp"
#include "copy/copier.hpp"
#include "linkspan/types.hpp"
#include "transport/transport.hpp"

namespace linkspan::transport::local {

/// How a process maps the peer's region.
enum class Mapped : std::uint8_t { nothing, same_process, cuda_ipc, memfd, cuda_vmm, cuda_pool };

struct RouteFacts {
  MemoryKind local = MemoryKind::host, remote = MemoryKind::host;
  bool local_dma = false;   ///< A GPU can read and write it: device, pinned or registered memory.
  bool remote_dma = false;  ///< As local_dma, through the mapping here.
  Mapped mapped = Mapped::nothing;
  std::string_view why_not_mapped{};
  bool cross_process = false;  ///< process_vm_readv works and the owner gave an address.
  std::string_view why_no_cross_process{};
  bool peer_can_map = false;             ///< The peer can map the local region, and may.
  Mapped peer_mapped = Mapped::nothing;  ///< How the peer then maps it.
  std::string_view why_peer_cannot{};
  bool may_ask_peer = true;    ///< False if this side already executes for the peer.
  bool bounce = false;         ///< This side can allocate memory that both sides map.
  bool bounce_on_gpu = false;  ///< Both ends are GPU memory; the bounce memory would be of our GPU.
  std::string_view why_no_gpu_bounce{};
  bool own_kernel = false;  ///< The copy kernel is loaded on our GPU.
  /// Our GPU has a free pinned slot, and the kernel alone answers page faults of the peer's memory.
  bool slots = false;
  unsigned threads = copy::kUsualThreads;  ///< CPU threads that copy here; the peer's are unknown.
  unsigned links = 1;  ///< PCIe links for a large copy from the host to a GPU (copy/relay.hpp).
  copy::Link link = copy::Link::host;
  bool to_gpu = false;                 ///< For Link::host: the copy goes to a GPU.
  bool kernel = false;                 ///< The copying GPU has the copy kernel.
  bool resident = false;               ///< The copying GPU has the resident kernel too.
  const copy::Rates* rates = nullptr;  ///< Measured for the copying GPU; null: built in.
  std::string_view why_no_kernel{};
  std::string_view why_one_link{};
  BatchSummary shape{};
};

/// Bounce memory is divided into chunks. Several are in flight, so that the two phases of a large
/// transfer overlap. Each costs a message to the peer, so smaller chunks would be slower.
inline constexpr std::uint64_t kHostChunk = 4u << 20, kGpuChunk = 8u << 20;
inline constexpr unsigned kBounceChunks = 4;  ///< In each bounce memory.

/// Maximum of a batch that goes through a pinned slot; the peer copies larger ones sooner.
inline constexpr std::uint64_t kSlotBatchBytes = std::uint64_t{64} << 10, kSlotBatchBlocks = 64;

constexpr bool on_gpu(MemoryKind kind) noexcept { return kind == MemoryKind::device; }

struct Route {
  enum class Where : std::uint8_t { nowhere, here, peer, both };
  Where where = Where::nowhere;
  copy::Method method = copy::Method::cpu_threads;  ///< For `peer`: its expected choice.
  // For `both`: this side copies between its memory and the bounce memory, the peer between the
  // bounce memory and its own.
  copy::Link near_link = copy::Link::host, far_link = copy::Link::host;
  copy::Method far_method = copy::Method::cpu_threads;  ///< The peer's expected choice.
  /// With `here`: `method` between the GPU and a pinned slot, cross_process between the slot and
  /// the peer's memory.
  bool through_slot = false;
};

/// Chooses the route.
Route route(const RouteFacts& facts) noexcept;
/// Returns mapping and copier, such as "cuda_ipc+copy_engine". Static text; empty for `nowhere`.
std::string_view path_of(const RouteFacts& facts, const Route& chosen);
/// Returns the path of a copy on this side.
std::string_view path_here(Mapped mapped, copy::Method method);
/// Explains the decision: path, executing side, and why each better route was refused.
Explanation describe(const RouteFacts& facts, const Route& chosen);

}  // namespace linkspan::transport::local
