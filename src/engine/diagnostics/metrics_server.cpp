#include "engine/diagnostics/metrics_server.hpp"

#include <arpa/inet.h>

#include <utility>

#include "control/socket_address.hpp"

namespace linkspan::engine {
namespace {

constexpr base::OptionInfo kAddress{.name = "metrics (address)", .variable = "LINKSPAN_METRICS"};
constexpr base::OptionInfo kRank{.name = "metrics (rank)", .variable = "LINKSPAN_METRICS_RANK"};
constexpr std::uint64_t kMaxPort = 65535;

/// Returns whether it is the number of a host, which is resolved without waiting.
bool is_number(const std::string& host) {
  in6_addr bytes{};  // has room for either
  return ::inet_pton(AF_INET, host.c_str(), &bytes) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), &bytes) == 1;
}

}  // namespace

Result<net::TcpAddress> parse_metrics_address(const std::string& text) {
  std::string whole = text.find(':') == std::string::npos ? ":" + text : text;
  if (whole.front() == ':') whole.insert(0, "127.0.0.1");
  const auto at = control::parse_address("tcp:" + whole, {});
  const std::string host = !at.ok() ? "" : at->host == "localhost" ? "127.0.0.1" : at->host;
  if (!is_number(host) || at->incarnation != 0)
    return Status(Code::invalid_argument, Scope::request,
                  "\"" + text +
                      "\" is no address to listen at: give PORT for loopback, or the number of an "
                      "interface, as in 10.0.0.7:9400 or [::1]:9400");
  const auto found = net::resolve(host, at->port);
  return found.ok() ? Result<net::TcpAddress>(found->front()) : found.status();
}

Result<std::optional<net::TcpAddress>> metrics_address(const base::Options& options) {
  const base::Setting asked = options.setting_of(kAddress), rank = options.setting_of(kRank);
  if (asked.value.empty()) return std::optional<net::TcpAddress>();
  const auto address = parse_metrics_address(asked.value);
  if (!address.ok()) return asked.refused(address.status().what());
  std::uint64_t above = 0;
  if (Status status = rank.read_number(0, kMaxPort - address->port(), above); !status.ok())
    return status;
  return std::optional(address->with_port(static_cast<std::uint16_t>(address->port() + above)));
}

net::HttpServer::Page metrics_page(std::function<std::string()> metrics) {
  return {.path = "/metrics",
          .type = "text/plain; version=0.0.4; charset=utf-8",
          .text = std::move(metrics)};
}

Result<std::unique_ptr<net::HttpServer>> serve_metrics(const Diagnostics& diagnostics,
                                                       const base::Options& options,
                                                       const base::Log& log) {
  std::unique_ptr<net::HttpServer> none;
  const auto address = metrics_address(options);
  if (!address.ok()) return address.status();
  if (!*address) return none;
  auto server = net::HttpServer::start(
      **address, metrics_page([&diagnostics] { return diagnostics.metrics(); }));
  if (server.ok()) {
    log.write(base::Level::info, "counters are served at " + (*server)->url());
    return server;
  }
  log.write(base::Level::warning,
            std::string(kAddress.variable) +
                ": counters are not served: " + server.status().what() +
                (server.status().code() == Code::busy
                     ? "; set LINKSPAN_METRICS_RANK to another number for each process, or let "
                       "`linkspan ps --listen` serve all of them"
                     : ""));
  return none;
}

}  // namespace linkspan::engine
