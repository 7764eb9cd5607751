// old_glibc/steady_wait.hpp - waits on a condition variable until a time of the steady clock, where
// glibc has no pthread_cond_clockwait(), as in 2.28 and 2.29. Threads: any thread.
#pragma once

#include <pthread.h>

#include <ctime>

namespace linkspan::old_glibc {

/// Waits as pthread_cond_clockwait(CLOCK_MONOTONIC) does. From then on each wait on `condition`
/// with a time takes it as one of that clock, so that the clocks of one condition variable never
/// mix.
int steady_wait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* until);

}  // namespace linkspan::old_glibc
