// tools/linkspan/report_json.hpp - a DemoReport as the rows that evidence/ keeps.
//
// Threads: a pure function.
#pragma once

#include <string>

#include "tools/linkspan/demo_report.hpp"

namespace linkspan::tool {

/// Indented, with a newline at the end. `command` is the command line that ran.
std::string to_json(const DemoReport& report, const std::string& command);

}  // namespace linkspan::tool
