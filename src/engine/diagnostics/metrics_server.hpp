// engine/diagnostics/metrics_server.hpp - serves the counters of an Engine by HTTP, where
// LINKSPAN_METRICS says so.
//
// Off the path of a byte: an HttpServer has a thread of its own.
// Threads: any thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/log.hpp"
#include "base/options.hpp"
#include "engine/diagnostics/diagnostics.hpp"
#include "net/http_server.hpp"

namespace linkspan::engine {

/// Parses "9400", ":9400", "127.0.0.1:9400", "[::1]:9400" or "localhost:9400"; without a host it is
/// loopback. Resolves no names, because a resolver may take long. invalid_argument: the text is
/// none of these.
Result<net::TcpAddress> parse_metrics_address(const std::string& text);

/// Returns the address that LINKSPAN_METRICS and LINKSPAN_METRICS_RANK say. nullopt: they are not
/// set. invalid_argument: a variable is wrong.
Result<std::optional<net::TcpAddress>> metrics_address(const base::Options& options);

/// Returns the page /metrics, with what `metrics` returns at each request.
net::HttpServer::Page metrics_page(std::function<std::string()> metrics);

/// Serves those of `diagnostics` at metrics_address(). null: there is none, or it cannot be had,
/// which is logged. invalid_argument: as there.
/// `diagnostics` outlives the server.
Result<std::unique_ptr<net::HttpServer>> serve_metrics(const Diagnostics& diagnostics,
                                                       const base::Options& options,
                                                       const base::Log& log);

}  // namespace linkspan::engine
