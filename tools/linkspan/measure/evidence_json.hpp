// tools/linkspan/measure/evidence_json.hpp - a Report as the rows that evidence/ keeps.
//
// Threads: a pure function.
#pragma once

#include <string>

#include "tools/linkspan/measure/report.hpp"

namespace linkspan::tool {

/// Indented, with a newline at the end. `what` is measured, by the command line `command`.
std::string to_json(const Report& report, const std::string& what, const std::string& command);

}  // namespace linkspan::tool
