#include "engine/diagnostics/metrics_server.hpp"

#include <utility>

namespace linkspan::engine {
namespace {

constexpr base::OptionInfo kAddress{.name = "metrics (address)", .variable = "LINKSPAN_METRICS"};
constexpr base::OptionInfo kRank{.name = "metrics (rank)", .variable = "LINKSPAN_METRICS_RANK"};
constexpr unsigned kMaxPort = 65535;

}  // namespace

Result<std::unique_ptr<net::HttpServer>> serve_metrics(const net::TcpAddress& address,
                                                       std::function<std::string()> metrics,
                                                       std::string& at) {
  auto listening = net::listen_at(address);
  if (!listening.ok()) return listening.status();
  const auto actual = net::address_of(*listening);
  if (!actual.ok()) return actual.status();
  at = "http://" + actual->to_string() + "/metrics";
  return net::HttpServer::start(*std::move(listening),
                                {.path = "/metrics",
                                 .type = "text/plain; version=0.0.4; charset=utf-8",
                                 .text = std::move(metrics)});
}

Result<std::unique_ptr<net::HttpServer>> serve_metrics(const Diagnostics& diagnostics,
                                                       const base::Options& options,
                                                       const base::Log& log) {
  const base::Setting asked = options.setting_of(kAddress), rank = options.setting_of(kRank);
  std::unique_ptr<net::HttpServer> none;
  if (asked.value.empty()) return none;
  auto address = net::parse_http_address(asked.value);
  if (!address.ok()) return asked.refused(address.status().what());
  std::uint64_t above = 0;
  if (Status status = rank.read_number(0, kMaxPort - address->port(), above); !status.ok())
    return status;
  address = address->with_port(static_cast<std::uint16_t>(address->port() + above));
  std::string at;
  auto server = serve_metrics(
      *address, [&diagnostics] { return diagnostics.metrics(); }, at);
  if (server.ok()) {
    log.write(base::Level::info, "counters are served at " + at);
    return server;
  }
  log.write(base::Level::warning,
            asked.from + ": counters are not served: " + server.status().what() +
                (server.status().code() == Code::busy
                     ? "; set LINKSPAN_METRICS_RANK to another number for each process, or let "
                       "`linkspan ps --listen` serve all of them"
                     : ""));
  return none;
}

}  // namespace linkspan::engine
