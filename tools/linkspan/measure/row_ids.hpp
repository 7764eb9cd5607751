// tools/linkspan/measure/row_ids.hpp - the ids of rows in evidence/, and the bars and ceilings
// known for them.
//
// Threads: pure functions.
#pragma once

#include <string>

#include "tools/linkspan/measure/report.hpp"

namespace linkspan::tool {

/// Returns the id of a row: "gpu_gpu.1GiB", "pinned_gpu.1GiB.read",
/// "gpu_gpu.8B.submit_to_done.p50", "gpu_gpu.1MiB.depth16". "gpu" is gpu0, but "gpu_gpu" goes from
/// gpu0 to gpu1. With ".read" the first process reads, hence the source is the other process's.
/// Rows of a suite may have a label in place of the pair and a suffix: "pages.8192x4KiB",
/// "pinned_gpu.64MiB.other_process".
std::string id_of(const Row& row);

/// The comparison of a row with its bar and with the known ceiling of such machines.
struct Verdict {
  Bar bar{};             ///< Minimum; for a time, maximum.
  bool pass = false;     ///< The row was moved and verified, and meets its bar.
  bool suspect = false;  ///< The ceiling is not in the range of such machines.
};
Verdict judge(const Row& row, const bare::Machine& machine);

}  // namespace linkspan::tool
