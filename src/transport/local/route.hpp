// transport/local/route.hpp - which of the two sides copies, by what, through which mapping.
//
// Pure: facts in, a Route out; so each rule is a row of a unit test. On the path of a byte between
// the checks of post() and the copier.
// Threads: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "copy/chooser.hpp"
#include "copy/copier.hpp"
#include "linkspan/types.hpp"
#include "transport/transport.hpp"

namespace linkspan::transport::local {

/// How this process reaches the peer's region by address.
enum class Mapped : std::uint8_t { nothing, same_process, cuda_ipc, memfd, cuda_vmm, cuda_pool };

struct RouteFacts {
  MemoryKind local = MemoryKind::host, remote = MemoryKind::host;
  bool local_dma = false;   ///< A GPU can read and write it: device, pinned, registered.
  bool remote_dma = false;  ///< The same of the mapping here.
  Mapped mapped = Mapped::nothing;
  std::string_view why_not_mapped{};
  bool cross_process = false;  ///< process_vm_readv works and the owner gave an address.
  std::string_view why_no_cross_process{};
  bool peer_can_map = false;  ///< Ours: there is something to map it by, and it may be given.
  Mapped peer_mapped = Mapped::nothing;  ///< As what the peer then maps it.
  std::string_view why_peer_cannot{};
  bool may_ask_peer = true;    ///< False where we execute for the peer already.
  bool bounce = false;         ///< Memory of ours can be made that both sides map.
  bool bounce_on_gpu = false;  ///< It would be of our end's GPU, and the other end is a GPU's too.
  std::string_view why_no_gpu_bounce{};
  bool own_kernel = false;                 ///< The copy kernel is loaded on our end's GPU.
  unsigned threads = copy::kUsualThreads;  ///< Of ours that copy by the CPU; the peer's: unknown.
  unsigned links = 1;  ///< That a large copy from host memory to a GPU takes (copy/relay.hpp).
  copy::Link link = copy::Link::host;
  bool to_gpu = false;                 ///< Link::host: it is one to a GPU.
  bool kernel = false;                 ///< The device that would copy can do so by the kernel.
  bool resident = false;               ///< It can do so by a resident kernel as well.
  const copy::Rates* rates = nullptr;  ///< Measured, of the device that would copy; null: built in.
  std::string_view why_no_kernel{};
  std::string_view why_one_link{};
  BatchSummary shape{};
};

/// Bounce memory is taken by chunks: what one takes to be count_copy twice is in flight at a time,
/// and several are, so that the two hops of a large transfer overlap. A message to the peer goes
/// with each, hence not smaller.
inline constexpr std::uint64_t kHostChunk = 4u << 20, kGpuChunk = 8u << 20;
inline constexpr unsigned kBounceChunks = 4;  ///< Of each bounce memory.

constexpr bool on_gpu(MemoryKind kind) noexcept { return kind == MemoryKind::device; }

struct Route {
  enum class Where : std::uint8_t { nowhere, here, peer, both };
  Where where = Where::nowhere;
  copy::Method method = copy::Method::cpu_threads;  ///< For `peer`: what it is expected to take.
  // For `both`: we copy between our end and the bounce memory, the peer between that and its own.
  copy::Link near_link = copy::Link::host, far_link = copy::Link::host;
  copy::Method far_method = copy::Method::cpu_threads;  ///< What the peer is expected to take.
};

Route route(const RouteFacts& facts) noexcept;
/// "cuda_ipc+copy_engine": mapping and copier. Lives as long as the process; empty: nowhere.
std::string_view path_of(const RouteFacts& facts, const Route& chosen);
/// Of a copy here by that copier.
std::string_view path_here(Mapped mapped, copy::Method method);
/// The same decision in words; `mapping+copier`, who executes, and each better way refused.
Explanation describe(const RouteFacts& facts, const Route& chosen);

}  // namespace linkspan::transport::local
