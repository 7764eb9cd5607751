// tools/linkspan/command_line/tool.hpp - the command line as one function: finds the verb, reads
// its arguments, runs it.
//
// Threads: the main thread.
#pragma once

#include "linkspan/linkspan.h"

/// Returns the exit code of the process (verb.hpp). A wheel has it in liblinkspan.so.0.
extern "C" LINKSPAN_C_API int linkspan_tool(int argc, char** argv);
