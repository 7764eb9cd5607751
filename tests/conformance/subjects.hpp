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

// tcp.cpp: three streams over loopback.
Result<HereEnd::Parts> tcp_host();
Result<HereEnd::Parts> tcp_device();

// nccl_net.cpp: by tests/support/nccl_net_plugin, of version 7 (device type UNPACK) and the newest.
Result<HereEnd::Parts> nccl_net_v7_host();
Result<HereEnd::Parts> nccl_net_v7_device();
Result<HereEnd::Parts> nccl_net_newest_host();
Result<HereEnd::Parts> nccl_net_newest_device();

}  // namespace linkspan::test
