// copy/copier.hpp - the interface through which transports move bytes within a host.
//
// An Order names addresses that this process can use; the caller has checked what they belong to
// and whether they may be accessed. Three implementations: GpuCopier (copy engines and SM kernel,
// one per device), ResidentCopier (small pieces, one per device) and CpuCopier (threads,
// cross-process reads, pageable memory).
// Threads: called under its transport's mutex, where nothing blocks. The GPU or an executor does
// the work and owns the order until it is quiet.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/clock.hpp"
#include "linkspan/status.hpp"

namespace linkspan::cuda {
class Device;
class Event;
class PooledEvent;
}  // namespace linkspan::cuda

namespace linkspan::copy {

/// One contiguous copy. Addresses are of this process, of its GPUs, or of Order::pid.
struct Piece {
  std::uint64_t to = 0, from = 0, bytes = 0;
};

/// Where the pages of a pair of regions are counted from.
struct PageBases {
  std::uint64_t to = 0, from = 0;
};

/// A further pair of regions of a PageList, with lists as long as the first pair's; null: with
/// these.
struct FurtherPages {
  PageBases bases;
  const std::uint32_t *to_index = nullptr, *from_index = nullptr;
};

/// Copies of one size at indices: page i goes from `from` + from_index[i] * page_bytes to `to` +
/// to_index[i] * page_bytes.
struct PageList {
  std::uint64_t to = 0, from = 0, page_bytes = 0;
  std::span<const std::uint32_t> to_index, from_index;  ///< Equal lengths.
  /// Addresses of the two lists as the kernel sees them, valid until the order is quiet; of the
  /// spans only the sizes count then. Zero: the kernel gets a copy of the spans.
  std::uint64_t to_list = 0, from_list = 0;
  /// The highest valid index of each list, for lists that were not checked. A page above it is not
  /// copied, and the order ends as invalid_argument.
  std::uint32_t to_last = ~std::uint32_t{0}, from_last = ~std::uint32_t{0};
  std::uint64_t first = 0;  ///< Number of the first page in that error.
  /// Either all or none has lists of its own. Read during start() only.
  std::span<const FurtherPages> more{};

  /// Returns how many pairs of regions have lists of their own.
  std::size_t lists() const noexcept {
    return more.empty() || more.front().to_index == nullptr ? 1 : 1 + more.size();
  }
};

enum class Method : std::uint8_t {
  copy_engine,    ///< The GPU's DMA engines, one asynchronous copy for each piece.
  sm_kernel,      ///< One kernel for all pieces.
  cpu_threads,    ///< memcpy by an executor's threads.
  pageable,       ///< Between a GPU and pageable memory, through staging buffers.
  cross_process,  ///< process_vm_readv or _writev by an executor.
  resident,       ///< A kernel that stays on one SM for a while. One small piece.
};

inline constexpr std::size_t kMethods = 6;

/// Returns "copy_engine" and so on, as explain() and logs spell it.
constexpr const char* name_of(Method method) noexcept {
  constexpr const char* kNames[kMethods] = {"copy_engine", "sm_kernel",     "cpu_threads",
                                            "pageable",    "cross_process", "resident_kernel"};
  return kNames[static_cast<unsigned>(method)];
}

/// The connection between source and destination; rates differ by it.
enum class Link : std::uint8_t {
  host,  ///< One side is host memory.
  peer,  ///< Two GPUs.
  same_gpu,
};

/// Identifies an accepted Order until poll() has returned its result. Never reused, never zero.
using Ticket = std::uint64_t;

/// Bytes that a process has shown to have at an address of its own. The copying thread reads them
/// back before the first copy with that process, because its memory may never answer a page fault.
/// Threads: any thread.
struct ProcessProof {
  enum class ProofState : std::uint8_t { unknown, right, wrong };
  std::uint64_t address = 0;
  std::array<std::byte, 16> bytes{};
  std::atomic<ProofState> state{ProofState::unknown};
  std::atomic<base::Time> alive{base::Time{}};  ///< When the process was last seen to live.
};

/// Maximum duration of a copy across processes whose memory is called prompt.
inline constexpr Duration kPrompt = std::chrono::milliseconds(1);

struct Order {
  Method method = Method::cpu_threads;
  std::span<const Piece> pieces = {};  ///< Read during start() only. May be empty.
  PageList pages = {};  ///< sm_kernel: instead of pieces. Spans are read during start() only.
  unsigned queue = 0;   ///< GPU: orders with the same number end in order; any number.
  /// Cross-process: the process in whose address space `from` (remote_is_source) or `to` is. The
  /// pidfd guards against a reused pid. Both are borrowed until the order is quiet.
  std::int64_t pid = 0;
  int pidfd = -1;
  ProcessProof* proof = nullptr;  ///< Borrowed likewise. Null: the pid is known to be right.
  /// Cross-process, out: whether the last copy ended within kPrompt. Borrowed likewise; may be
  /// null.
  std::atomic<bool>* prompt = nullptr;
  bool remote_is_source = false;
  /// Cross-process: the peer that owns the memory, which may never answer a page fault
  /// (userfaultfd, FUSE, NFS). The orders of one peer get a share of the executors.
  std::uint64_t peer = 0;
  Link link = Link::host;                ///< Decides how finely copies are cut; for expected().
  const cuda::Device* device = nullptr;  ///< Pageable: the GPU that copies; outlives the copier.
  unsigned ctas = ~0u;                   ///< Maximum of a kernel; pageable with 0 starts no kernel.
  bool to_gpu = false;  ///< Link::host: true if `to` is on the GPU, else `from` is.
  /// cpu_threads, pageable: host memory may be unmapped or protected, so it is copied by system
  /// calls, and the order then ends as `unreachable`.
  bool guarded = false;
  /// cpu_threads: no access to either memory waits for another process, as in sealed tmpfs. start()
  /// then copies what is small itself.
  bool sealed = false;
  /// cpu_threads and cross_process, for orders that CpuCopier::is_small() accepts: start() leaves
  /// it to CpuCopier::run().
  bool by_caller = false;
  /// GPU only: the order starts after the event, which was recorded in a user's stream and may not
  /// complete for long. Meanwhile the orders of one `stream` have a queue of their own.
  const cuda::Event* after = nullptr;
  std::uint64_t stream = 0;
  /// GPU only, out: an event recorded after the order. Null: not wanted.
  std::optional<cuda::PooledEvent>* release = nullptr;
  /// Out: the method used, if it is not `method`. Borrowed until poll() has returned the result.
  Method* actual_method = nullptr;
};

class Copier {
 public:
  virtual ~Copier() = default;  ///< Requires: all orders quiet, or the process is ending.
  /// Starts an order. On any error nothing is in flight. no_resource: try again after poll() has
  /// returned a result. Addresses are not checked.
  virtual Result<Ticket> start(const Order& order) = 0;
  /// Asks for an early end. The order still becomes quiet by itself, as OK or `canceled`.
  virtual void abort(Ticket ticket) = 0;
  /// Returns the result of an order once it is quiet, and forgets its ticket; returns nothing while
  /// it runs. An unknown ticket is `internal`.
  virtual std::optional<Status> poll(Ticket ticket) = 0;
  /// Returns the earliest time at which poll() may return the oldest order's result; `now` if it
  /// does. An overdue order is to be polled ever more rarely, counted from the last poll().
  virtual base::Time expected(base::Time now) const = 0;
};

}  // namespace linkspan::copy
