// test_tcpx_transfer: 23 bytes of GPU memory from a client to a server through a TCPX plugin,
// unpacked and verified; the flow of docs/tcpx_transfer.md, which `linkspan tcpx transfer` runs
// with more bytes.
//
// Usage: test_tcpx_transfer server | client SERVER_IP
// Exit codes: 0 verified on both sides, 1 not, 2 bad usage.
#include "p2p/tcpx/tests/program.hpp"

int main(int argc, char** argv) {
  const auto plan = linkspan::tcpx_tests::parse(argc, argv);
  if (!plan) return 2;
  const auto print = [](const std::string& line) {
    std::printf("[DEBUG] %s\n", line.c_str());
    std::fflush(stdout);
  };
  const auto figures = linkspan::tool::run_tcpx(*plan, print);
  if (figures.ok()) return 0;
  print("Test FAILED: " + figures.status().to_string());
  return 1;
}
