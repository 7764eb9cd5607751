// tests/support/sanitizer_order.hpp - orders accesses of a test and of an Engine's threads as far
// as a sanitizer sees.
//
// A peer in another process orders them really: it writes before it says so. No sanitizer sees
// that. Threads: any thread.
#pragma once

#include "linkspan/engine.hpp"

namespace linkspan::test {

/// Orders what the Engine's threads did for peers before what the caller does next, and what the
/// caller did before what they do next: dump() takes the locks of each peer and its wires.
inline void order_accesses(const Engine& engine) { (void)engine.dump(); }

}  // namespace linkspan::test
