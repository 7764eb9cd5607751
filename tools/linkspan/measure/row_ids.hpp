// tools/linkspan/measure/row_ids.hpp - what a row is called in evidence/, and what is known of that
// row.
//
// Threads: pure functions.
#pragma once

#include <string>

#include "tools/linkspan/measure/report.hpp"

namespace linkspan::tool {

/// "gpu_gpu.1GiB", "pinned_gpu.1GiB.read", "gpu_gpu.8B.submit_to_done.p50", "gpu_gpu.1MiB.depth16".
/// "gpu" is gpu0, but "gpu_gpu" goes from gpu0 to gpu1. With ".read" the first process reads, hence
/// the source is the other process's. Rows of a suite may have a label in place of the pair and a
/// suffix: "pages.8192x4KiB", "pinned_gpu.64MiB.other_process".
std::string id_of(const Row& row);

/// A row with a bar, held against it; one with a known ceiling, held against that.
struct Verdict {
  Bar bar{};             ///< At least, or for a time at most.
  bool pass = false;     ///< Moved and verified, and its bar is met.
  bool suspect = false;  ///< Its ceiling is not what such a machine reaches.
};
Verdict judge(const Row& row, const bare::Machine& machine);

}  // namespace linkspan::tool
