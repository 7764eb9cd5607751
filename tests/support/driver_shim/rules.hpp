// tests/support/driver_shim/rules.hpp - what befalls the calls that pass the shim: errors, delays,
// and the note that a forbidden one was made.
//
// Orders come from a test (control.hpp) or, for a process that is spawned, from LINKSPAN_SHIM_RULES
// in the environment. They are words, several with commas between; ENTRY is a name or *, N counts
// the calls from the order on:
//   fail ENTRY N ERROR   the N-th answers ERROR and does nothing
//   lose ENTRY N ERROR   so does, and so do all later calls in the context that was current then
//   stall ENTRY N US     the N-th begins so many microseconds later
//   delay ENTRY US       each of them does
//   forbid ENTRY         calls are made, and remembered
//   trace                the names of the calls from now on are kept
//   clear                no order holds any more, and what was remembered is forgotten
// Calls of a thread that has said that they are the test's own are none of all these.
// Threads: any thread.
#pragma once

#include <string>

#include "cuda/driver_abi.hpp"

namespace linkspan::cuda::shim {

using CurrentContext = CUresult (*)(CUcontext* context);

/// False: there is no such order; then none of `text` holds.
bool order(const char* text);
/// What the environment orders; its mistakes end the process.
void order_from_environment();
/// Of the driver beneath: a lost context is known by it.
void ask_for_context(CurrentContext current);

/// From now on calls of this thread are the test's own, or are not.
void set_own(bool own);
bool is_own();

/// Before each call. An error: the call is not made and answers that.
CUresult meet(const char* entry);

/// The entries whose calls were answered by "fail" or "lose" themselves, in order.
std::string struck();
/// Of those that were forbidden and called.
std::string forbidden();
/// The i-th call since "trace"; null behind the last.
const char* traced(unsigned long long i);

}  // namespace linkspan::cuda::shim
