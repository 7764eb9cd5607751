// tools/linkspan/command_line/signals.hpp - how a verb that serves waits for its end: SIGINT,
// SIGTERM or a time.
//
// Threads: the main thread.
#pragma once

#include <signal.h>

#include "linkspan/types.hpp"

namespace linkspan::tool {

/// SIGINT and SIGTERM: blocked in this thread and in all that begin later, so that wait_for() alone
/// sees them.
sigset_t block_signals();
/// Until one of `set` comes, or `time` has passed.
void wait_for(const sigset_t& set, Duration time);

}  // namespace linkspan::tool
