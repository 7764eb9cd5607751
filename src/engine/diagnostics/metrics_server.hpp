// engine/diagnostics/metrics_server.hpp - serves the counters of an Engine by HTTP, where
// LINKSPAN_METRICS says so.
//
// Off the path of a byte: an HttpServer has a thread of its own.
// Threads: any thread.
#pragma once

#include <memory>
#include <string>

#include "base/log.hpp"
#include "base/options.hpp"
#include "engine/diagnostics/diagnostics.hpp"
#include "net/http_server.hpp"
#include "net/tcp_socket.hpp"

namespace linkspan::engine {

/// Listens at `address` and serves what `metrics` returns under /metrics. Errors as
/// net::listen_at(). `at`: receives the address with the actual port.
Result<std::unique_ptr<net::HttpServer>> serve_metrics(const net::TcpAddress& address,
                                                       std::function<std::string()> metrics,
                                                       std::string& at);

/// Serves those of `diagnostics` as LINKSPAN_METRICS and LINKSPAN_METRICS_RANK say. null: they are
/// not set, or the address cannot be had, which is logged. invalid_argument: a variable is wrong.
/// `diagnostics` outlives the server.
Result<std::unique_ptr<net::HttpServer>> serve_metrics(const Diagnostics& diagnostics,
                                                       const base::Options& options,
                                                       const base::Log& log);

}  // namespace linkspan::engine
