// test_connection: listen, connect and accept through a TCPX plugin, by the C calls of
// tcpx_interface.h, and an orderly close.
//
// Usage: test_connection server | client SERVER_IP
// Exit codes: 0 both sides are connected, 1 not, 2 bad usage.
#include "p2p/tcpx/tcpx_bootstrap.hpp"
#include "p2p/tcpx/tcpx_interface.h"
#include "p2p/tcpx/tests/program.hpp"

namespace {

using linkspan::Code;
using linkspan::Result;
using linkspan::Scope;
using linkspan::Status;
using linkspan::tool::Bootstrap;
using linkspan::tool::TcpxPlan;
namespace base = linkspan::base;

constexpr char kConnected = 'c';

void print(const std::string& line) {
  std::printf("[DEBUG] %s\n", line.c_str());
  std::fflush(stdout);
}

Status called(const char* call, int result) {
  if (result == 0) return {};
  return {Code::internal, Scope::transport,
          std::string(call) + " returns " + std::to_string(result) + ": " + tcpx_last_error()};
}

base::Deadline step_deadline(const TcpxPlan& plan) { return base::Deadline::in(plan.timeout); }

/// Calls `call` until it has made a comm.
template <class Call>
Status poll_until(const TcpxPlan& plan, const Bootstrap& bootstrap, const char* name, void*& comm,
                  const Call& call) {
  const base::Deadline deadline = step_deadline(plan);
  while (comm == nullptr) {
    if (Status status = called(name, call()); !status.ok()) return status;
    if (comm != nullptr) break;
    if (deadline.passed())
      return {Code::timed_out, Scope::peer, std::string(name) + ": the other side has not come"};
    if (Status status = bootstrap.wait_briefly(); !status.ok()) return status;
  }
  return {};
}

/// Exchanges a byte that says that this side is connected.
Status agree(const TcpxPlan& plan, const Bootstrap& bootstrap) {
  if (Status status = bootstrap.send(kConnected, step_deadline(plan)); !status.ok()) return status;
  const Result<char> received = bootstrap.receive(step_deadline(plan));
  if (!received.ok()) return received.status();
  print("✓ Connection test PASSED");
  return {};
}

Status serve(const TcpxPlan& plan) {
  linkspan::transport::nccl_net::Handle handle{};
  void *listening = nullptr, *comm = nullptr;
  const int device = static_cast<int>(plan.device);
  if (Status status = called("tcpx_listen", tcpx_listen(device, handle.data(), &listening));
      !status.ok())
    return status;
  print("Listening on device " + std::to_string(device));
  auto bootstrap = Bootstrap::serve(plan.port, handle, step_deadline(plan));
  Status end = bootstrap.ok()
                   ? poll_until(plan, *bootstrap, "tcpx_accept_v5", comm,
                                [&] { return tcpx_accept_v5(listening, &comm, nullptr); })
                   : bootstrap.status();
  if (end.ok()) {
    print("Connection accepted");
    end = agree(plan, *bootstrap);
  }
  if (comm != nullptr && end.ok()) end = called("tcpx_close_recv", tcpx_close_recv(comm));
  const Status closed = called("tcpx_close_listen", tcpx_close_listen(listening));
  return end.ok() ? closed : end;
}

Status connect(const TcpxPlan& plan) {
  print("Connecting to server at " + plan.host);
  alignas(16) linkspan::transport::nccl_net::Handle handle{};
  void* comm = nullptr;
  const int device = static_cast<int>(plan.device);
  auto bootstrap = Bootstrap::connect(plan.host, plan.port, handle, step_deadline(plan));
  if (!bootstrap.ok()) return bootstrap.status();
  Status end = poll_until(plan, *bootstrap, "tcpx_connect_v5", comm,
                          [&] { return tcpx_connect_v5(device, handle.data(), &comm, nullptr); });
  if (!end.ok()) return end;
  print("Connection established");
  end = agree(plan, *bootstrap);
  const Status closed = called("tcpx_close_send", tcpx_close_send(comm));
  return end.ok() ? closed : end;
}

}  // namespace

int main(int argc, char** argv) {
  auto plan = linkspan::tcpx_tests::parse(argc, argv);
  if (!plan) return 2;
  if (!plan->plugin.empty()) ::setenv("LINKSPAN_NCCL_NET_PLUGIN", plan->plugin.c_str(), 1);
  const int devices = tcpx_get_device_count();
  if (devices < 0) {
    print(std::string("Test FAILED: ") + tcpx_last_error());
    return 1;
  }
  print("Devices: " + std::to_string(devices));
  const Status end = plan->server ? serve(*plan) : connect(*plan);
  if (end.ok()) return 0;
  print("Test FAILED: " + end.to_string());
  return 1;
}
