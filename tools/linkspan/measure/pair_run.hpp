// tools/linkspan/measure/pair_run.hpp - moves, verifies and measures the bytes of one pair of
// memories.
//
// First a list of blocks of odd sizes at odd offsets is moved and the bytes around them are
// checked; then the transfer of each shape. Then library and bare copies are timed in alternation.
// The last counted run moves fresh data of which every byte is checked; bare copies of the same
// bytes too. Threads: externally synchronised.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "tools/linkspan/measure/report.hpp"
#include "tools/linkspan/pair/shape.hpp"
#include "tools/linkspan/pair/two_processes.hpp"

namespace linkspan::tool {

/// Minimum bytes of a region: room for the blocks that verify_blocks() moves.
inline constexpr std::uint64_t kMinRegion = std::uint64_t{4} << 20;

inline constexpr const char* kTimeIsOver = "the time that --limit gives is over";

/// How one shape is measured.
struct RunPlan {
  Shape shape;
  unsigned runs = 1;
  unsigned block = 1;    ///< Runs of one contestant in a block.
  unsigned depth = 1;    ///< Row::depth
  bool latency = false;  ///< Row::latency
  bool verify = true, ceiling = true;
  bool prepared = false;  ///< Each transfer is prepared once and posted each time.
  bool captured = false;  ///< Prepared and captured; each run is kLaunches launches of the graph.
  bool parts = false;  ///< Of several regions: a TransferPart a pair, else one shape for all pairs.
  bool gpu_indices = false;              ///< Pages::indices_on_gpu
  bool low_latency = false;              ///< TransferOptions::low_latency
  bool checksum = false;                 ///< TransferOptions::checksum
  std::optional<unsigned> relay_gpus{};  ///< EngineOptions::relay_gpus of the first process.
  Against against = Against::usual;
  std::string label{}, suffix{};  ///< Row::label, Row::suffix
  Bar bar{};                      ///< Row::bar
  Duration at_most =
      std::chrono::seconds(4);  ///< Limits the time of measuring; after it fewer runs.

  /// Returns the row before it is measured.
  Row row(Op op, Place from, Place to) const;
};

class PairRun {
 public:
  /// `both` outlives it. `deadline` limits all runs together.
  PairRun(TwoProcesses& both, base::Deadline deadline) : both_(both), deadline_(deadline) {}

  /// Verifies that blocks of odd sizes arrive in place and that no other byte changes.
  Status verify_blocks(const Pair& pair);
  /// Runs all pairs at the same time; they share no destination. If the shape has several regions,
  /// the pairs are one transfer of pages, else a transfer each. The row's path is the first pair's.
  /// A failure is in the row. If `before` is an error, nothing runs and the row has that error.
  Row run(std::span<const Pair> pairs, const RunPlan& plan, const Status& before);
  /// Returns the path of `bytes` bytes in `blocks` blocks.
  Result<Explanation> explain(const Pair& pair, std::uint64_t bytes, std::uint64_t blocks = 1,
                              const TransferOptions& options = {}) const;
  /// Returns why no further run is possible, else ok: the second process has ended, or a transfer
  /// is not quiet.
  const Status& fatal_error() const noexcept { return fatal_error_; }

 private:
  /// One transfer before its submission.
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
  /// Copies the index lists into memory of this process's GPU, which it returns.
  static Result<cuda::DeviceBuffer> put_on_gpu(std::span<Submission> all);
  Status verify_spans(const Pair& pair);
  Status measure(std::span<const Pair> pairs, const RunPlan& plan, const Layout& layout, Row& out);
  Status record(Status status);

  /// Returns the time from before the first submission until all are quiet. `submit` starts the
  /// transfer of a number.
  template <class Submit>
  Result<Duration> timed(std::size_t count, const Submit& submit);
  Result<Duration> transfer(std::span<const Submission> all, bool low_latency = false,
                            bool checksum = false);
  /// Returns what times a launch of a graph that has captured what was prepared.
  static Result<std::function<Result<Duration>()>> launches(const Submission& one);
  /// Returns what times one transfer over the regions of all submissions, which have equal pages.
  std::function<Result<Duration>()> over_regions(std::span<const Submission> all, bool parts);
  /// Runs `contestant` on fresh data, and checks that each byte is in place and no other changed.
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
  std::vector<Transfer> under_way_;  // used by timed(), which must not allocate
  Status fatal_error_;
};

}  // namespace linkspan::tool
