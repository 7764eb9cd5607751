// engine/diagnostics/metrics.hpp - the counters of an Engine, and their text for Prometheus.
//
// On the path of a byte: two additions where a transfer begins; a search for its path and five
// additions where it ends. No allocation, no lock of its own.
// Threads: PeerCounters under the peer's mutex; metrics_text() is pure.
// Invariants: counters never decrease; those of forgotten peers are kept as a sum.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "linkspan/status.hpp"
#include "linkspan/types.hpp"
#include "transport/transport.hpp"

namespace linkspan::engine {

inline constexpr std::size_t kCodes = static_cast<std::size_t>(Code::internal) + 1;

/// Kinds of submissions.
enum class Work : std::uint8_t { write, read, send, receive };
inline constexpr std::array kWork = {"write", "read", "send", "receive"};

/// Histogram of the times from submission to quiet, by upper bounds.
struct Latency {
  static constexpr std::array<Duration, 10> kBounds = {
      std::chrono::microseconds(10),  std::chrono::microseconds(30),
      std::chrono::microseconds(100), std::chrono::microseconds(300),
      std::chrono::milliseconds(1),   std::chrono::milliseconds(3),
      std::chrono::milliseconds(10),  std::chrono::milliseconds(100),
      std::chrono::seconds(1),        std::chrono::seconds(10)};

  std::array<std::uint64_t, kBounds.size() + 1> counts{};
  Duration sum{0};

  void add(Duration took) noexcept;
};

/// Counts transfers with one peer over one path that ended well.
struct PathCounters {
  std::string_view path{};  ///< Static; empty in an unused entry.
  std::array<std::uint64_t, kWork.size()> transfers{}, bytes{};
  Latency latency;
};

struct PeerCounters {
  /// More than there are paths; the last entry counts any others, as "other".
  static constexpr std::size_t kPaths = 16;

  std::uint64_t started = 0;
  std::uint64_t notifications_sent = 0, notifications_received = 0;
  std::uint64_t imports = 0, imports_failed = 0, keys_sent = 0, failovers = 0;
  std::array<std::uint64_t, kCodes> failed{};
  std::array<PathCounters, kPaths> paths{};

  /// Returns the counters of `path`, which is static and not empty.
  PathCounters& for_path(std::string_view path) noexcept;
  void succeeded(std::string_view path, Work work, std::uint64_t bytes, Duration took) noexcept;
  void add(const PeerCounters& other) noexcept;
};

/// Metrics of one peer, or of all peers that are gone.
struct PeerMetrics {
  std::string id, name;
  bool up = false;
  std::size_t outstanding = 0, queued = 0;
  PeerCounters counters;
};

struct EngineMetrics {
  static constexpr std::size_t kPeers = 64;  ///< Further peers are added up.

  std::string engine, pid, incarnation;
  std::vector<PeerMetrics> peers;
  std::vector<transport::CopyCount> copies;
  std::size_t peers_up = 0, regions = 0;
};

/// Returns the text exposition format (version 0.0.4). Omits zero series of families that have
/// labels beside the peer's.
std::string metrics_text(const EngineMetrics& metrics);

}  // namespace linkspan::engine
