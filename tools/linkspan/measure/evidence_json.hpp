// tools/linkspan/measure/evidence_json.hpp - formats a Report as the JSON rows that evidence/
// keeps.
//
// Threads: a pure function.
#pragma once

#include <string>

#include "tools/linkspan/measure/report.hpp"

namespace linkspan::tool {

/// Returns indented JSON with a newline at the end. `what` names the measurement, `command` the
/// command line that ran.
std::string to_json(const Report& report, const std::string& what, const std::string& command);

}  // namespace linkspan::tool
