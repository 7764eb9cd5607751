// tools/linkspan/demo.hpp - `linkspan demo`: two processes, every pair of memories, real bytes.
//
// The first process asks for every transfer; the second, which it starts itself, owns the far
// memories. Writes for all pairs; reads too where the other side's owner would take another way.
// Threads: the main thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "linkspan/types.hpp"
#include "tools/linkspan/demo_report.hpp"

namespace linkspan::tool {

struct DemoOptions {
  bool quick = false;       ///< 1 MiB for every pair.
  std::uint64_t bytes = 0;  ///< For every pair. Zero: 1 GiB where a link is to be filled.
  Duration limit = std::chrono::seconds(150);
  /// Told before each pair: which of how many.
  std::function<void(std::size_t index, std::size_t count, const std::string& pair)> progress;
};

DemoReport run_demo(const DemoOptions& options);

}  // namespace linkspan::tool
