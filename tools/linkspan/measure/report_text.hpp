// tools/linkspan/measure/report_text.hpp - formats a Report as text.
//
// Threads: pure functions.
#pragma once

#include <string>

#include "tools/linkspan/measure/report.hpp"

namespace linkspan::tool {

/// Returns the line "machine: NVIDIA H200, NVIDIA H200, driver 580.159.04, ..."
std::string machine_line(const bare::Machine& machine);
/// Returns the remedy that makes a machine's GPUs visible.
std::string gpu_remedy();

/// Returns the machine line and, if no GPU is shown, the reason.
std::string head_of(const Report& report);
/// Formats two rows as one line: the rate and the latency of a pair.
std::string demo_text(const Report& report);
/// Formats each row as a line.
std::string bench_text(const Report& report);

}  // namespace linkspan::tool
