// copy/chooser.hpp - which copier suits a shape, and how fast it should be.
//
// Pure: rates in, a Method or a time out, so that explain() and the path of a byte give one answer.
// The rates are built in (chooser.cpp says beside each where it comes from) or measured
// (calibration.hpp). They choose between copiers and tell a ProgressThread when to look; nothing is
// wrong when a machine is faster or slower.
// Threads: any thread.
#pragma once

#include <cstdint>

#include "base/clock.hpp"
#include "copy/copier.hpp"

namespace linkspan::copy {

/// What a copier takes: a start, what each piece adds to it, and bytes, at so many a microsecond:
/// 1e3 is 1 GB/s.
struct Rate {
  double start_us, piece_us, bytes;
};
/// Of a GPU over one Link.
struct Rates {
  Rate engine, kernel;
};
/// Of one H200 and the next (chooser.cpp).
const Rates& built_in(Link link) noexcept;

struct ShapeFacts {
  std::uint64_t pieces = 0, bytes = 0;
  Link link = Link::host;
  bool kernel_available = false;    ///< GpuCopier::has_kernel().
  bool resident_available = false;  ///< There is a ResidentCopier, and it was asked for.
  const Rates* rates = nullptr;     ///< Null: built in.
};

/// copy_engine for few or large pieces, sm_kernel for many small ones, resident for a tiny one.
Method choose_gpu(const ShapeFacts& shape);

/// What an executor has where nobody chose another number and the machine has as many cores.
inline constexpr unsigned kUsualThreads = 16;

/// From start() to the end of an order that finds its lane or its executors idle. `threads` may
/// share what the CPU copies. `rates`: null: built in.
Duration expected_time(Method method, Link link, std::uint64_t bytes, std::uint64_t pieces,
                       unsigned threads = kUsualThreads, const Rates* rates = nullptr);

/// No order ends before that: for who sleeps meanwhile. `threads` may share it. By the faster of
/// `rates` and what is built in, for a busy GPU measures slow.
Duration earliest_time(Method method, Link link, std::uint64_t bytes, unsigned threads,
                       const Rates* rates = nullptr);

/// 1e9 bytes a second over expected_time(). Zero for no bytes.
double expected_gbps(Method method, Link link, std::uint64_t bytes, std::uint64_t pieces,
                     unsigned threads = kUsualThreads, const Rates* rates = nullptr);

/// Of these bytes from host memory to a GPU over so many PCIe links (copy/relay.hpp).
double relayed_gbps(std::uint64_t bytes, std::uint64_t pieces, unsigned links);

/// Pieces from this size on are relayed. By the model two links then take less than two thirds of
/// the time of one, and a quarter of this size is where they begin to gain.
inline constexpr std::uint64_t kMinRelayBytes = std::uint64_t{16} << 20;
/// What another GPU holds for the destination's at a time. Each costs 2.4 us of 151; the last one's
/// second hop, 21 us, is on top.
inline constexpr std::uint64_t kRelayChunk = std::uint64_t{8} << 20;

/// From when on the driver is asked for what is late, and how often.
inline constexpr Duration kOverdue = std::chrono::milliseconds(200);
inline constexpr Duration kQueryInterval = std::chrono::milliseconds(50);

/// When to look at what cannot end before `due` and was last_poll at last at `last_poll`: at `due`;
/// then at once while that is cheap, and ever more rarely, so that what is late costs no core.
base::Time poll_hint(base::Time due, base::Time last_poll) noexcept;

}  // namespace linkspan::copy
