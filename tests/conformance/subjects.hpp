// tests/conformance/subjects.hpp - what the table in subjects.cpp is made of.
//
// A transport comes under the suite by its own file, a declaration here and a line in the table.
// Threads: externally synchronised.
#pragma once

#include "tests/support/transport_fixture.hpp"

namespace linkspan::test {

// loopback.cpp
Result<Ends> open_loopback(const Subject& subject);

// local.cpp: one end each; the regions of the exclusive ones cannot be mapped.
Result<HereEnd::Parts> local_host();
Result<HereEnd::Parts> local_exclusive();
Result<HereEnd::Parts> local_exclusive_device();
Result<HereEnd::Parts> local_shared();
Result<HereEnd::Parts> local_device();
Result<HereEnd::Parts> local_pinned();

}  // namespace linkspan::test
