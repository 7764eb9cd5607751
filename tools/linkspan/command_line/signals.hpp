// tools/linkspan/command_line/signals.hpp - lets a verb that serves wait for SIGINT, SIGTERM or a
// time.
//
// Threads: the main thread.
#pragma once

#include <signal.h>

#include "linkspan/types.hpp"

namespace linkspan::tool {

/// Blocks SIGINT and SIGTERM in this thread and in all threads started later, so that only
/// wait_for() receives them. Returns the two signals.
sigset_t block_signals();
/// Waits until a signal of `set` arrives or `time` has passed. Returns whether one has arrived.
bool wait_for(const sigset_t& set, Duration time);

}  // namespace linkspan::tool
