// tests/support/driver_shim/balance.hpp - counts the driver's objects that this process created and
// did not destroy, exactly: calls that create one less those that destroy it.
//
// A call that failed has created nothing. A call to destroy something that an order (rules.hpp) let
// fail counts as if it had succeeded, because the order leaves the object, not the caller.
// Threads: any thread.
#pragma once

namespace linkspan::cuda::shim {

/// Null for entries that neither make nor end anything. Lives for ever.
struct Account;
const Account* account_of(const char* entry);
/// Counts a call of the entry that succeeded, or that an order let fail.
void settle(const Account& account, bool failed_by_order);
/// Returns the name of the i-th kind of object and its count; null after the last.
const char* balance(unsigned i, long long* count);

}  // namespace linkspan::cuda::shim
