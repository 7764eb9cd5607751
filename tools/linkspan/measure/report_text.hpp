// tools/linkspan/measure/report_text.hpp - a Report as people read it.
//
// Threads: pure functions.
#pragma once

#include <string>

#include "tools/linkspan/measure/report.hpp"

namespace linkspan::tool {

/// "machine: NVIDIA H200, NVIDIA H200, driver 580.159.04, ..."
std::string machine_line(const bare::Machine& machine);
/// What makes a machine's GPUs visible.
std::string gpu_remedy();

/// The machine, and why its GPUs are not shown if they are not.
std::string head_of(const Report& report);
/// Two rows are a line: the rate and the latency of one pair.
std::string demo_text(const Report& report);
/// A row is a line.
std::string bench_text(const Report& report);

}  // namespace linkspan::tool
