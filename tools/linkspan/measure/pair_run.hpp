// tools/linkspan/measure/pair_run.hpp - one pair of memories: moves bytes, verifies, measures.
//
// Data first: a list of blocks of odd sizes at odd offsets with what lies around them watched, then
// the transfer of each shape. Then the clock: library and bare call take turns, and the last run
// that counts moves fresh data, of which every byte is looked at afterwards. So are the bare call's
// where it moves the same.
// Threads: externally synchronised.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "tools/linkspan/measure/report.hpp"
#include "tools/linkspan/pair/shape.hpp"
#include "tools/linkspan/pair/two_processes.hpp"

namespace linkspan::tool {

/// No region is smaller: room for the blocks that are verified.
inline constexpr std::uint64_t kMinRegion = std::uint64_t{4} << 20;

inline constexpr const char* kTimeIsOver = "the time that --limit gives is over";

/// How one shape is measured.
struct RunPlan {
  Shape shape;
  unsigned runs = 1;
  unsigned block = 1;    ///< Runs of one before it is the other's turn.
  unsigned depth = 1;    ///< Row::depth
  bool latency = false;  ///< Row::latency
  bool verify = true, ceiling = true;
  bool prepared = false;                 ///< Each transfer is prepared once and posted each time.
  bool gpu_indices = false;              ///< Pages::indices_on_gpu
  bool low_latency = false;              ///< TransferOptions::low_latency
  bool checksum = false;                 ///< TransferOptions::checksum
  std::optional<unsigned> relay_gpus{};  ///< EngineOptions::relay_gpus of the first process.
  Against against = Against::usual;
  std::string label{}, suffix{};               ///< Row::label, Row::suffix
  Bar bar{};                                   ///< Row::bar
  Duration at_most = std::chrono::seconds(4);  ///< Of measuring; then fewer runs.

  /// What is known of its row before it has run.
  Row row(Op op, Place from, Place to) const;
};

class PairRun {
 public:
  /// `both` outlives it. `deadline` is of all that it runs.
  PairRun(TwoProcesses& both, base::Deadline deadline) : both_(both), deadline_(deadline) {}

  /// Blocks of odd sizes arrive where they should, and nothing else changes.
  Status verify_blocks(const Pair& pair);
  /// At once between all pairs, which share no destination. A failure is in the row; so is that of
  /// `before`, with which nothing is run.
  Row run(std::span<const Pair> pairs, const RunPlan& plan, const Status& before);
  /// Which way `bytes` bytes in so many blocks go.
  Result<Explanation> explain(const Pair& pair, std::uint64_t bytes, std::uint64_t blocks = 1,
                              const TransferOptions& options = {}) const;
  /// Nothing more can be run: the second process is lost, or the memory of a transfer is not free.
  const Status& fatal_error() const noexcept { return fatal_error_; }

 private:
  /// One transfer, ready to be submitted.
  struct Submission {
    const Pair* pair;
    std::uint64_t base = 0;  // of its bytes in both memories
    std::vector<Block> blocks{};
    Pages pages{};     // without indices: blocks
    Prepared ready{};  // instead of both
  };

  static std::vector<Submission> submissions_of(std::span<const Pair> pairs, const Layout& layout,
                                                unsigned depth);
  Status prepare(std::span<Submission> all) const;
  /// Puts their lists into the memory that it answers, of the GPU of the first process.
  static Result<cuda::DeviceBuffer> put_on_gpu(std::span<Submission> all);
  Status verify_spans(const Pair& pair);
  Status measure(std::span<const Pair> pairs, const RunPlan& plan, const Layout& layout, Row& out);
  Status record(Status status);

  /// From before the first submission until all are seen to be quiet.
  Result<Duration> transfer(std::span<const Submission> all, bool low_latency = false,
                            bool checksum = false);
  /// What `contender` does to fresh data: each byte must be where it should and no other changed.
  Result<Duration> verified(const Contestant& contestant, std::span<const Submission> all,
                            const Shape& shape, const Layout& layout);
  Status fill(const Pair& pair, bool source, std::uint64_t offset, std::uint64_t bytes,
              std::uint64_t seed, std::uint64_t from);
  Status check(const Pair& pair, std::uint64_t offset, std::uint64_t bytes, std::uint64_t seed,
               std::uint64_t from);
  Status call(const std::string& request);

  TwoProcesses& both_;
  const base::Deadline deadline_;
  std::uint64_t seed_ = 0;
  std::vector<Transfer> under_way_;  // of transfer(), which is to allocate nothing
  Status fatal_error_;
};

}  // namespace linkspan::tool
