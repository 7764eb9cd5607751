// copy/copier.hpp - what moves bytes inside a host, as the transports see it.
//
// An Order names addresses that this process can use; whose they are and whether they may be
// touched was decided before. Three implementations: GpuCopier (copy engine and SM kernel, one per
// device), ResidentCopier (small pieces, likewise) and CpuCopier (threads, cross-process reads,
// pageable memory).
// Threads: under the scheduler's lock, where nothing blocks; the work itself is the GPU's or an
// executor's, which owns the order until it is quiet.
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

/// One contiguous copy; addresses of this process, of its GPUs, or of Order::pid.
struct Piece {
  std::uint64_t to = 0, from = 0, bytes = 0;
};

/// Copies of one size at indices: page i goes from `from` + from_index[i] * page_bytes to `to` +
/// to_index[i] * page_bytes.
struct PageList {
  std::uint64_t to = 0, from = 0, page_bytes = 0;
  std::span<const std::uint32_t> to_index, from_index;  ///< Equal lengths.
  /// Where the kernel finds the two lists, which stay there until the order is quiet; the spans
  /// then count only. Zero: it is given a copy.
  std::uint64_t to_list = 0, from_list = 0;
  /// Of lists that nobody has checked the highest right index. A page above it is not copied, and
  /// the order ends as invalid_argument.
  std::uint32_t to_last = ~std::uint32_t{0}, from_last = ~std::uint32_t{0};
  std::uint64_t first = 0;  ///< How that error counts the first page.
};

enum class Method : std::uint8_t {
  copy_engine,    ///< The GPU's DMA engines, one asynchronous copy a piece.
  sm_kernel,      ///< One kernel for all pieces.
  cpu_threads,    ///< memcpy by an executor's threads.
  pageable,       ///< Between a GPU and pageable memory, through an executor's staging slots.
  cross_process,  ///< process_vm_readv or _writev, in an executor.
  resident,       ///< By a kernel that stays on one SM for a while. One small piece.
};

inline constexpr std::size_t kMethods = 6;

/// "copy_engine" and so on, as explain() and logs spell it.
constexpr const char* name_of(Method method) noexcept {
  constexpr const char* kNames[kMethods] = {"copy_engine", "sm_kernel",     "cpu_threads",
                                            "pageable",    "cross_process", "resident_kernel"};
  return kNames[static_cast<unsigned>(method)];
}

/// What lies between the two ends; the rates differ by it.
enum class Link : std::uint8_t {
  host,  ///< One side is host memory.
  peer,  ///< Two GPUs.
  same_gpu,
};

/// Names one accepted Order until poll() has told its end. Never used again, never zero.
using Ticket = std::uint64_t;

/// Bytes that a process has shown to have at an address of its own. They are read back before the
/// first copy between it and this process, by the thread that copies: its memory may never answer.
/// Threads: any thread.
struct ProcessProof {
  enum class State : std::uint8_t { unknown, right, wrong };
  std::uint64_t address = 0;
  std::array<std::byte, 16> bytes{};
  std::atomic<State> state{State::unknown};
};

struct Order {
  Method method = Method::cpu_threads;
  std::span<const Piece> pieces = {};  ///< Read during start() only. None is an order as well.
  PageList pages = {};  ///< sm_kernel: instead of pieces. The spans are read during start() only.
  unsigned queue = 0;   ///< GPU: orders of one lane end in order; any number is taken.
  /// Cross-process: whose address space `from` (a read) or `to` (a write) is in. The pidfd guards
  /// against a number that was given to another process; a loan until the order is quiet.
  std::int64_t pid = 0;
  int pidfd = -1;
  ProcessProof* proof = nullptr;  ///< A loan as well. Null: the number is known to be its own.
  bool remote_is_source = false;
  /// Cross-process: whose memory it is, which may not answer (a page of userfaultfd, FUSE or NFS).
  /// The orders of one peer take a share of the executors.
  std::uint64_t peer = 0;
  Link link = Link::host;                ///< How finely copies are cut; for expected().
  const cuda::Device* device = nullptr;  ///< Pageable: whose copy engines; outlives the copier.
  unsigned ctas = ~0u;                   ///< Of a kernel at most; pageable with 0: none is started.
  bool to_gpu = false;                   ///< Link::host: `to` is the GPU's, else `from`.
  /// cpu_threads, pageable: host memory may be gone or protected, and is copied by calls that
  /// answer so. The order then ends as `unreachable`.
  bool guarded = false;
  /// GPU only. The order starts behind what the event has recorded of a user's stream, which may
  /// stand still for long: the orders of one `stream` have a lane to themselves meanwhile.
  const cuda::Event* after = nullptr;
  std::uint64_t stream = 0;
  /// GPU only. Out: recorded behind the order. Null: nobody waits for it in a stream.
  std::optional<cuda::PooledEvent>* release = nullptr;
  /// Out: by what it is copied, where that is not `method`; a loan until poll() has told the end.
  Method* actual_method = nullptr;
};

class Copier {
 public:
  virtual ~Copier() = default;  ///< Requires: all orders quiet, or the process is ending.
  /// no_resource: nothing was started, slots come back in poll(). Any other error: nothing is in
  /// flight either. Addresses are not checked.
  virtual Result<Ticket> start(const Order& order) = 0;
  /// Asks for an early end; the order still becomes quiet by itself, as OK or `canceled`.
  virtual void abort(Ticket ticket) = 0;
  /// The end of an order, once: it is quiet and its ticket is gone. Nothing while it runs. An
  /// unknown ticket is `internal`.
  virtual std::optional<Status> poll(Ticket ticket) = 0;
  /// When poll() may have news of the oldest order, at the earliest. `now`: it has. What is overdue
  /// is to be looked at ever more rarely, counted from the last poll().
  virtual base::Time expected(base::Time now) const = 0;
};

}  // namespace linkspan::copy
