// tools/linkspan/demo_text.hpp - a DemoReport for people.
//
// Threads: a pure function.
#pragma once

#include <string>

#include "tools/linkspan/demo_report.hpp"

namespace linkspan::tool {

std::string to_text(const DemoReport& report);

}  // namespace linkspan::tool
