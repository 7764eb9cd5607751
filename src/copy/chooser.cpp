#include "copy/chooser.hpp"

#include <algorithm>
#include <array>

#include "copy/resident_copier.hpp"

namespace linkspan::copy {
namespace {

// One GPU to another over NVLink, or to and from pinned memory over PCIe 5 x16; two H200, driver
// 580 (docs/cuda_notes.md, "rates"). Rates are a microsecond's bytes: 1e3 is 1 GB/s. The model
// gives, from start() to the end seen by poll(), within a tenth: copy engine 8 B 6.7 us, 1 MiB 9.8,
// 16 x 1 MiB 85; kernel 8 B 10.9, 1 MiB 14, 16 x 1 MiB 63, 8192 x 4 KiB 121.
constexpr double kEngineUs = 4.4, kEnginePieceUs = 2.4;   // copies run one by one
constexpr double kKernelUs = 11, kKernelPieceUs = 0.002;  // the list is written and read
constexpr Rates rates_of(double engine_bytes, double kernel_bytes) {
  return {.engine = {kEngineUs, kEnginePieceUs, engine_bytes},
          .kernel = {kKernelUs, kKernelPieceUs, kernel_bytes}};
}
constexpr std::array kBuiltIn = {rates_of(55.5e3, 51.4e3), rates_of(396.7e3, 356e3),
                                 rates_of(1510e3, 1400e3)};  // [Link]
// Per thread, faster than any was seen; all of `pageable` share a link.
constexpr double kMemcpyAtBest = 14e3, kCrossAtBest = 8e3, kPageableAtBest = 14e3;
constexpr double kEngineAtBest = 1.02;                      // of Rates
constexpr double kResidentUs = 5.6, kResidentBytes = 41e3;  // one CTA; 8 B 5.7 us, 64 KiB 7.3
constexpr double kHandOverUs = 9;                           // two events between GPUs, at a guess
constexpr double kExecutorUs = 50;                          // to wake a sleeping thread
constexpr double kCrossBytes = 4.3e3;                       // process_vm_readv, one thread: 4.3-6.2
// Minimum size of one thread's share.
constexpr std::uint64_t kChunkBytes = std::uint64_t{1} << 20, kStagedBytes = kChunkBytes / 4;

/// Bandwidth of n threads: n * alone / (1 + n * crowd), since they share the memory's bandwidth.
struct ByThreads {
  double alone, crowd;
  double operator()(std::uint64_t threads) const {
    const auto n = static_cast<double>(threads);
    return n * alone / (1 + n * crowd);
  }
};
constexpr ByThreads kMemcpyBytes{8.57e3, 0.046};     // 1 thread 8.2 GB/s, 4: 29, 8: 48
constexpr ByThreads kPageableBytes{10.27e3, 0.104};  // the bare staged loop; 2: 17, 4: 29, 8: 46.6

/// Returns how many threads can share the bytes.
std::uint64_t workers(std::uint64_t bytes, std::uint64_t each, unsigned threads) {
  return std::clamp<std::uint64_t>(bytes / each, 1, std::max(threads, 1u));
}

double microseconds(Method method, Link between, std::uint64_t bytes, std::uint64_t pieces,
                    unsigned threads, const Rates* rates) {
  const auto size = static_cast<double>(bytes), count = static_cast<double>(pieces);
  const Rates& r = rates != nullptr ? *rates : built_in(between);
  const auto by = [&](const Rate& rate) {
    return rate.start_us + count * rate.piece_us + size / rate.bytes;
  };
  switch (method) {
    case Method::copy_engine:
      return by(r.engine);
    case Method::sm_kernel:
      return by(r.kernel);
    case Method::resident:
      return kResidentUs + size / kResidentBytes;
    case Method::cpu_threads:
      return kExecutorUs + size / kMemcpyBytes(workers(bytes, kChunkBytes, threads));
    case Method::pageable:
      return kExecutorUs +
             size / std::min(kPageableBytes(workers(bytes, kStagedBytes, threads)), r.engine.bytes);
    case Method::cross_process:
      return kExecutorUs + size / kCrossBytes;
  }
  return 0;
}

}  // namespace

const Rates& built_in(Link link) noexcept { return kBuiltIn.at(static_cast<std::size_t>(link)); }

Method choose_gpu(const ShapeFacts& shape) {
  const auto time = [&shape](Method method) {
    return microseconds(method, shape.link, shape.bytes, shape.pieces, 1, shape.rates);
  };
  Method best = Method::copy_engine;
  if (shape.kernel_available && time(Method::sm_kernel) < time(best)) best = Method::sm_kernel;
  if (shape.resident_available && shape.pieces == 1 && shape.bytes <= ResidentCopier::kMaxBytes &&
      time(Method::resident) < time(best))
    best = Method::resident;
  return best;
}

Duration expected_time(Method method, Link link, std::uint64_t bytes, std::uint64_t pieces,
                       unsigned threads, const Rates* rates) {
  const std::chrono::duration<double, std::micro> time(
      microseconds(method, link, bytes, pieces, threads, rates));
  return std::chrono::duration_cast<Duration>(time);
}

double expected_gbps(Method method, Link link, std::uint64_t bytes, std::uint64_t pieces,
                     unsigned threads, const Rates* rates) {
  if (bytes == 0) return 0;
  return static_cast<double>(bytes) / microseconds(method, link, bytes, pieces, threads, rates) /
         1e3;
}

double relayed_gbps(std::uint64_t bytes, std::uint64_t pieces, unsigned links) {
  if (bytes == 0) return 0;
  const auto chunk = static_cast<double>(kRelayChunk);
  const double share = static_cast<double>(bytes) / links;
  const double us = kEngineUs + static_cast<double>(pieces) * kEnginePieceUs +
                    share / built_in(Link::host).engine.bytes + share / chunk * kEnginePieceUs +
                    chunk / built_in(Link::peer).engine.bytes + kHandOverUs;
  return static_cast<double>(bytes) / us / 1e3;
}

Duration earliest_time(Method method, Link link, std::uint64_t bytes, unsigned threads,
                       const Rates* rates) {
  const Rates& known = built_in(link);
  const Rates& r = rates != nullptr ? *rates : known;
  const double moved = kEngineAtBest * std::max({known.engine.bytes, known.kernel.bytes,
                                                 r.engine.bytes, r.kernel.bytes});
  const auto size = static_cast<double>(bytes);
  const auto most = [bytes, threads](std::uint64_t each) {
    return static_cast<double>(workers(bytes, each, threads));
  };
  double at_best = 0, at_least = 0;  // bytes a microsecond; microseconds
  switch (method) {
    case Method::resident:
      at_least = kResidentUs / 2;  // the kernel's next poll may come at once
      at_best = moved;
      break;
    case Method::copy_engine:
    case Method::sm_kernel:
      at_least = std::min({known.engine.start_us, r.engine.start_us, r.kernel.start_us});
      at_best = moved;
      break;
    case Method::cpu_threads:
      at_best = kMemcpyAtBest * most(kChunkBytes);
      break;
    case Method::cross_process:
      at_best = kCrossAtBest * most(kChunkBytes);
      break;
    case Method::pageable:
      at_best = std::min(kPageableAtBest * most(kStagedBytes), moved);
      break;
  }
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double, std::micro>(at_least + size / at_best));
}

base::Time poll_hint(base::Time due, base::Time last_poll) noexcept {
  using std::chrono::milliseconds;
  if (last_poll < due) return due;
  return last_poll + std::min<Duration>((last_poll - due) / 16, milliseconds(1));
}

}  // namespace linkspan::copy
