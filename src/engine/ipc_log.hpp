// engine/ipc_log.hpp - the lines of send_ipc and recv_ipc, word for word as users of the seed's
// programs know them.
//
// At INFO. tests/conformance/ipc_log_test.cpp holds them against the originals.
// Threads: any thread.
#pragma once

#include "base/log.hpp"
#include "engine/exchange.hpp"

namespace linkspan::engine {

/// Of GPU memory `device` is this process's ordinal; negative: CPU memory.
void log_ipc_begin(const base::Log& log, bool sends, std::uint64_t conn_id, std::uint64_t bytes,
                   int device);
void log_ipc_match(const base::Log& log, const Exchange& exchange);
void log_ipc_end(const base::Log& log, const Exchange& exchange);  ///< It went well.

}  // namespace linkspan::engine
