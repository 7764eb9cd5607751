// copy/chooser.hpp - chooses the copier for a shape and predicts how long a copy takes.
//
// Pure: rates in, a Method or a time out, so explain() and the path of a byte get one answer. Rates
// are built in (chooser.cpp names the source of each) or measured (calibration.hpp). They choose
// between copiers and tell a ProgressThread when to poll; a faster or slower machine breaks
// nothing.
// Threads: any thread.
// Invariants: the functions have no state.
#pragma once

#include <cstdint>

#include "base/clock.hpp"
#include "copy/copier.hpp"

namespace linkspan::copy {

/// The cost of a copier: a start, an addition for each piece, and bytes per microsecond (1e3 is
/// 1 GB/s).
struct Rate {
  double start_us, piece_us, bytes;
};
/// The rates of one GPU over one Link.
struct Rates {
  Rate engine, kernel;
};
/// Returns the rates measured on two H200 (chooser.cpp).
const Rates& built_in(Link link) noexcept;

struct ShapeFacts {
  std::uint64_t pieces = 0, bytes = 0;
  Link link = Link::host;
  bool kernel_available = false;    ///< GpuCopier::has_kernel().
  bool resident_available = false;  ///< There is a ResidentCopier, and the user asked for it.
  const Rates* rates = nullptr;     ///< Null: built in.
};

/// Returns copy_engine for few or large pieces, sm_kernel for many small ones, resident for a tiny
/// one.
Method choose_gpu(const ShapeFacts& shape);

/// Number of CPU threads assumed where it is not known.
inline constexpr unsigned kUsualThreads = 16;

/// Returns the time from start() to the end of an order on an idle queue or idle executors.
/// `threads` may share what the CPU copies. `rates` null: the built-in ones.
Duration expected_time(Method method, Link link, std::uint64_t bytes, std::uint64_t pieces,
                       unsigned threads = kUsualThreads, const Rates* rates = nullptr);

/// Returns a time before which no order ends, for threads that sleep meanwhile. `threads` may share
/// the work. Uses the faster of `rates` and the built-in ones, because a busy GPU measures slow.
Duration earliest_time(Method method, Link link, std::uint64_t bytes, unsigned threads,
                       const Rates* rates = nullptr);

/// Returns GB/s over expected_time(). Zero for no bytes.
double expected_gbps(Method method, Link link, std::uint64_t bytes, std::uint64_t pieces,
                     unsigned threads = kUsualThreads, const Rates* rates = nullptr);

/// Returns GB/s for these bytes from host memory to a GPU over `links` PCIe links (copy/relay.hpp).
double relayed_gbps(std::uint64_t bytes, std::uint64_t pieces, unsigned links);

/// Minimum size of a piece that is relayed. By the model two links then take less than two thirds
/// of the time of one; the gain begins at a quarter of this size.
inline constexpr std::uint64_t kMinRelayBytes = std::uint64_t{16} << 20;
/// Size of a chunk in a donor GPU's buffer. Each chunk costs 2.4 us of 151; the second hop of the
/// last one, 21 us, is added once.
inline constexpr std::uint64_t kRelayChunk = std::uint64_t{8} << 20;

/// Delay after which an order is overdue and the driver is queried, and the interval of the
/// queries.
inline constexpr Duration kOverdue = std::chrono::milliseconds(200);
inline constexpr Duration kQueryInterval = std::chrono::milliseconds(50);

/// Returns when to poll an order that cannot end before `due` and was last polled at `last_poll`:
/// at `due`, then immediately while that is cheap, then ever more rarely, so that a late order
/// costs no core.
base::Time poll_hint(base::Time due, base::Time last_poll) noexcept;

}  // namespace linkspan::copy
