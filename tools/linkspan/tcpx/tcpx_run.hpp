// tools/linkspan/tcpx/tcpx_run.hpp - GPU memory of one process into another's through a network
// plugin of NCCL's: the flow of p2p/tcpx/docs/tcpx_transfer.md.
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
  std::string host;         ///< Of a client: the server's.
  bool transfer = true;     ///< False: connect, and close in order.
  std::uint64_t bytes = 0;  ///< Of an iteration. 0: the 23 bytes that the documents show.
  unsigned iterations = 1;
  unsigned port = 12345;
  unsigned device = 0;       ///< The plugin's.
  std::string plugin;        ///< As load_selected() takes it.
  std::string unpack;        ///< d2d, host, kernel; empty: as the environment says, else d2d.
  bool host_memory = false;  ///< Also where the plugin takes GPU memory.
  Duration timeout = std::chrono::seconds(30);  ///< Of each wait.
};

struct TcpxFigures {
  double gb_per_s = 0;  ///< Until the last byte was in place; without verifying it.
  std::uint64_t fragments = 0;
};

/// `say`: each line of the flow, without an end. Not ok: what failed, also `corrupt` data. Both
/// sides fail when one does.
Result<TcpxFigures> run_tcpx(const TcpxPlan& plan,
                             const std::function<void(const std::string&)>& print);

}  // namespace linkspan::tool
