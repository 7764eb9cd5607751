// linkspan/compat/ipc.hpp - ordered messages under the names of the programs that linkspan is
// compatible with.
//
//   compat::send_ipc(engine, peer.id(), data, bytes);   // the peer's process: recv_ipc(...)
//
// Moves a message as Peer::send() and recv() do, without a tag: `conn_id` is Peer::id(), and the
// n-th send_ipc of a connection matches the n-th recv_ipc, whichever comes first. The memory need
// not be registered. Each step is logged at INFO, in the format of those programs.
// Threads: any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "linkspan/engine.hpp"

namespace linkspan::compat {

/// Sends `bytes` at `data`, and returns when the memory is the caller's again. That is at the
/// deadline at the latest (zero: the default), except if the peer's process is stopped during the
/// copy and may continue. not_found: no such connection. truncated, on both sides: the receiver
/// has less room, and nothing was written.
LINKSPAN_API Status send_ipc(Engine& engine, std::uint64_t conn_id, const void* data,
                             std::size_t bytes, Duration deadline = {});
/// Receives a message of at most `bytes`, and returns as send_ipc() does.
LINKSPAN_API Status recv_ipc(Engine& engine, std::uint64_t conn_id, void* data, std::size_t bytes,
                             Duration deadline = {});
/// Starts the same and returns at once. Transfer::bytes() of a receive returns how many arrived.
LINKSPAN_API Result<Transfer> send_ipc_async(Engine& engine, std::uint64_t conn_id,
                                             const void* data, std::size_t bytes,
                                             Duration deadline = {});
LINKSPAN_API Result<Transfer> recv_ipc_async(Engine& engine, std::uint64_t conn_id, void* data,
                                             std::size_t bytes, Duration deadline = {});

}  // namespace linkspan::compat
