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

// tcp.cpp: three streams over loopback, or by the cable that LINKSPAN_TEST_LINK names.
Result<Ends> open_tcp(const Subject& subject);
Result<HereEnd::Parts> tcp_host();
Result<HereEnd::Parts> tcp_device();

// nccl_net.cpp: by tests/support/nccl_net_plugin, of version 7 (device type UNPACK), the newest,
// and that which takes host memory only.
Result<HereEnd::Parts> nccl_net_v7_host();
Result<HereEnd::Parts> nccl_net_v7_device();
Result<HereEnd::Parts> nccl_net_newest_host();
Result<HereEnd::Parts> nccl_net_newest_device();
Result<HereEnd::Parts> nccl_net_staged_host();
Result<HereEnd::Parts> nccl_net_staged_device();
Result<HereEnd::Parts> nccl_net_exporter_host();  ///< By integrations/nccl.

// verbs.cpp: by tests/support/fake_verbs.
Result<HereEnd::Parts> verbs_host();
Result<HereEnd::Parts> verbs_device();

}  // namespace linkspan::test
