// tests/conformance/tcp.cpp - the tcp transport of this process, tried with one kind of memory.
#include "base/process.hpp"
#include "tests/conformance/subjects.hpp"
#include "tests/support/network.hpp"
#include "transport/tcp/tcp_transport.hpp"

namespace linkspan::test {
namespace {

Result<HereEnd::Parts> tcp_parts(MemoryKind kind) {
  if (Status status = kind == MemoryKind::device ? need_gpus(1) : Status(); !status.ok())
    return status;
  const std::uint64_t incarnation = base::random_u64();
  HereEnd::Parts parts;
  parts.kind = kind;
  parts.registry = std::make_unique<memory::Registry>(incarnation, topology());
  parts.transport = std::make_unique<transport::tcp::TcpTransport>(transport::tcp::TcpOptions{
      .topology = topology(), .incarnation = incarnation, .connections = 3, .first = 3});
  return parts;
}

}  // namespace

Result<Ends> open_tcp(const Subject& subject) {
  // Sets the network of the near end's process, which makes the data connections.
  if (const auto network = network_of_tests(); !network.ok()) return network.status();
  return open_in_two_processes(subject);
}
Result<HereEnd::Parts> tcp_host() { return tcp_parts(MemoryKind::host); }
Result<HereEnd::Parts> tcp_device() { return tcp_parts(MemoryKind::device); }

}  // namespace linkspan::test
