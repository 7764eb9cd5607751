// tests/support/driver_shim/balance.hpp - what this process has made by the driver and not given
// back, exactly: calls that made something less those that ended it.
//
// A call that failed has made nothing. One that was to end something and was failed by an order
// (rules.hpp) counts as if it had: what it leaves behind is the order's, not its caller's.
// Threads: any thread.
#pragma once

namespace linkspan::cuda::shim {

/// Null for entries that neither make nor end anything. Lives for ever.
struct Account;
const Account* account_of(const char* entry);
/// A call of the entry was good, or was failed by an order.
void settle(const Account& account, bool failed_by_order);
/// The name of the i-th kind of thing and how many there are; null behind the last.
const char* balance(unsigned i, long long* count);

}  // namespace linkspan::cuda::shim
