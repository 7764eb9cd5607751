// p2p/tcpx/tcpx_run.hpp - copies GPU memory between two processes through an NCCL
// network plugin: the flow of p2p/tcpx/docs/tcpx_transfer.md.
//
// Path of a byte: the client's GPU memory -> plugin -> (where it unpacks: its bounce pool ->
// descriptors -> unpack) -> the server's GPU memory -> verified.
// Threads: the main thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "linkspan/status.hpp"
#include "linkspan/types.hpp"

namespace linkspan::tool {

struct TcpxPlan {
  bool server = true;
  std::string host;         ///< The server's host, for a client.
  bool transfer = true;     ///< False: connect, and close in order.
  std::uint64_t bytes = 0;  ///< In an iteration. 0: the 23 bytes that the documents show.
  unsigned iterations = 1;
  unsigned port = 12345;
  unsigned device = 0;       ///< The plugin's.
  std::string plugin;        ///< The argument of load_selected().
  std::string unpack;        ///< d2d, host, kernel; empty: the environment's choice, else d2d.
  bool host_memory = false;  ///< Uses host memory even if the plugin takes GPU memory.
  Duration timeout = std::chrono::seconds(30);  ///< Limits each wait.
};

struct TcpxFigures {
  double gb_per_s = 0;  ///< In 1e9 bytes/s, until the last byte was in place; without verification.
  std::uint64_t fragments = 0;
};

/// Runs the plan. `print` receives each line of the flow, without a newline. An error says what
/// failed, `corrupt` for wrong data; both sides fail if one does.
Result<TcpxFigures> run_tcpx(const TcpxPlan& plan,
                             const std::function<void(const std::string&)>& print);

}  // namespace linkspan::tool
