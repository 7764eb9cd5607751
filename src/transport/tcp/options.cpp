#include "transport/tcp/options.hpp"

#include <algorithm>
#include <thread>

#include "transport/factory.hpp"
#include "transport/tcp/tcp_transport.hpp"

namespace linkspan::transport::tcp {
namespace {

constexpr base::OptionInfo kOptions[] = {
    {"tcp.connections", "LINKSPAN_TCP_STREAMS", "0 to 64",
     "the smaller of 8 and half of the CPU's cores",
     "TCP connections to a remote peer at most, each with a thread; the smaller number of both "
     "sides. Two are made when it is met, more while they make transfers faster. 0: no bytes go by "
     "TCP."},
    {"tcp.interfaces", "LINKSPAN_TCP_INTERFACES", "names, by comma", "none",
     "Network interfaces that these connections take in turn, where both sides name some: a `tcp:` "
     "listen is also at their addresses (docs/tcp.md). None: what the kernel routes by."},
    {"tcp.peer_timeout", "LINKSPAN_TCP_PEER_TIMEOUT", "s, 2 to 86400", "10",
     "After which a remote peer is lost whose host answers no packet, as when a cable is cut."},
    {"tcp.stall_timeout", "LINKSPAN_TCP_STALL_TIMEOUT", "s, 2 to 86400", "that of tcp.peer_timeout",
     "After which a remote peer is lost that takes no byte, as when its process is stopped."},
};
constexpr const base::OptionInfo& kConnections = kOptions[0];
constexpr const base::OptionInfo& kInterfaces = kOptions[1];
constexpr const base::OptionInfo& kPeerTimeout = kOptions[2];
constexpr const base::OptionInfo& kStallTimeout = kOptions[3];
constexpr std::uint64_t kMaxConnections = 64, kMinTimeout = 2, kMaxTimeout = 86400;

Status check(const base::Options& options) { return TcpSettings::read(options).status(); }

Result<std::unique_ptr<Transport>> create(const Context& context) {
  const auto settings = TcpSettings::read(*context.options);
  if (!settings.ok()) return settings.status();
  std::unique_ptr<Transport> made;
  if (settings->connections != 0)
    made = std::make_unique<TcpTransport>(
        TcpOptions{.topology = context.topology,
                   .incarnation = context.incarnation,
                   .connections = settings->connections,
                   .copy_ctas = context.options->copy_ctas,
                   .tls = context.options->security == Security::encrypted,
                   .max_stall = settings->stall_timeout});
  return made;
}

Result<std::vector<net::Interface>> interfaces(const base::Options& options) {
  return net::find_interfaces(options.setting_of(kInterfaces).value,
                              "tcp.interfaces (LINKSPAN_TCP_INTERFACES)");
}

Result<Duration> peer_timeout(const base::Options& options) {
  const auto settings = TcpSettings::read(options);
  return settings.ok() ? Result<Duration>(settings->peer_timeout) : settings.status();
}

}  // namespace

Result<TcpSettings> TcpSettings::read(const base::Options& options) {
  // hardware_concurrency() is 0 where it is not known.
  std::uint64_t connections = std::clamp(std::thread::hardware_concurrency() / 2, 1u, 8u);
  const base::Setting set = options.setting_of(kConnections);
  if (Status s = set.read_number(0, kMaxConnections, connections); !s.ok()) return s;
  std::uint64_t peer_timeout = 10;
  const base::Setting peer = options.setting_of(kPeerTimeout),
                      stall = options.setting_of(kStallTimeout);
  if (Status s = peer.read_number(kMinTimeout, kMaxTimeout, peer_timeout); !s.ok()) return s;
  std::uint64_t stall_timeout = peer_timeout;
  if (Status s = stall.read_number(kMinTimeout, kMaxTimeout, stall_timeout); !s.ok()) return s;
  return TcpSettings{.connections = static_cast<unsigned>(connections),
                     .interfaces = options.setting_of(kInterfaces).value,
                     .peer_timeout = std::chrono::seconds(peer_timeout),
                     .stall_timeout = std::chrono::seconds(stall_timeout)};
}

extern constinit const Factory factory{.options = kOptions,
                                       .check = check,
                                       .create = create,
                                       .interfaces = interfaces,
                                       .peer_timeout = peer_timeout};

}  // namespace linkspan::transport::tcp
