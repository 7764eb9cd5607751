// tests/support/driver_shim/rules.hpp - changes calls that pass the shim: makes them fail, delays
// them, and records forbidden ones.
//
// Orders come from a test (control.hpp) or, for a spawned process, from LINKSPAN_SHIM_RULES in the
// environment. They are texts, separated by commas; ENTRY is a name or *, N counts the calls from
// the order on:
//   fail ENTRY N ERROR   the N-th answers ERROR and does nothing
//   lose ENTRY N ERROR   the same, and for all later calls in the context that was current then
//   stall ENTRY N US     the N-th begins US microseconds later
//   delay ENTRY US       each begins US microseconds later
//   forbid ENTRY         calls are made, and recorded
//   trace                the names of all calls from now on are recorded
//   clear                ends all orders and drops all records
// No order applies to the calls of a thread that has declared them the test's own.
// Threads: any thread.
#pragma once

#include <string>

#include "cuda/driver_abi.hpp"

namespace linkspan::cuda::shim {

using CurrentContext = CUresult (*)(CUcontext* context);

/// Executes the orders in `text`. Returns false if one is not valid; then none applies.
bool order(const char* text);
/// Executes the orders of the environment. An invalid one ends the process.
void order_from_environment();
/// Sets the driver's call for the current context, by which a lost context is identified.
void ask_for_context(CurrentContext current);

/// Declares this thread's calls the test's own, or ends that.
void set_own(bool own);
bool is_own();

/// Called before each call. After an error the call is not made and answers that error.
CUresult meet(const char* entry);

/// Returns the entries whose calls were answered by "fail" or "lose" themselves, in order.
std::string struck();
/// Returns the forbidden entries that were called.
std::string forbidden();
/// Returns the i-th call since "trace"; null after the last.
const char* traced(unsigned long long i);

}  // namespace linkspan::cuda::shim
