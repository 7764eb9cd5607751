// Checks for the doctor what TCP between hosts needs: interfaces with their speed, MTU and
// offloads, the interfaces named for data connections, the limit of a socket's buffers, and
// encryption in the kernel. Asks the kernel, not sysfs, which in a container may show another
// network namespace.
#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <optional>

#include "base/fd.hpp"
#include "base/options.hpp"
#include "tools/linkspan/command_line/table.hpp"
#include "tools/linkspan/doctor/diagnosis.hpp"
#include "transport/registry.hpp"

namespace linkspan::tool {
namespace {

constexpr const char* kArea = "network";
constexpr unsigned kFastMbit = 25'000;
constexpr int kJumbo = 9000;
// Enough for 25 Gbit/s with a round trip of 5 ms, or 100 Gbit/s with 1.3 ms.
constexpr std::uint64_t kWindow = std::uint64_t{16} << 20;

struct Interface {
  unsigned flags = 0;
  std::string addresses;
};

std::map<std::string, Interface> interfaces() {
  std::map<std::string, Interface> out;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return out;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(all, &::freeifaddrs);
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if ((one->ifa_flags & IFF_UP) == 0) continue;
    Interface& found = out[one->ifa_name];
    found.flags = one->ifa_flags;
    const sockaddr* const address = one->ifa_addr;
    if (address == nullptr || (address->sa_family != AF_INET && address->sa_family != AF_INET6))
      continue;
    const socklen_t bytes =
        address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::array<char, NI_MAXHOST> host{};
    if (::getnameinfo(address, bytes, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST) == 0)
      found.addresses += (found.addresses.empty() ? "" : ", ") + std::string(host.data());
  }
  return out;
}

ifreq request_for(const std::string& name) {
  ifreq out{};
  name.copy(out.ifr_name, IFNAMSIZ - 1);
  return out;
}

std::optional<int> mtu_of(const base::Fd& socket, const std::string& name) {
  ifreq request = request_for(name);
  if (::ioctl(socket.get(), SIOCGIFMTU, &request) != 0) return std::nullopt;
  return request.ifr_mtu;
}

template <class Command>
bool ask_ethtool(const base::Fd& socket, const std::string& name, Command& command) {
  ifreq request = request_for(name);
  request.ifr_data = reinterpret_cast<char*>(&command);
  return ::ioctl(socket.get(), SIOCETHTOOL, &request) == 0;
}

/// Returns the speed in Mbit/s; nullopt if the interface reports none.
std::optional<unsigned> speed_of(const base::Fd& socket, const std::string& name) {
  ethtool_cmd settings{};
  settings.cmd = ETHTOOL_GSET;
  if (!ask_ethtool(socket, name, settings)) return std::nullopt;
  const unsigned speed = ::ethtool_cmd_speed(&settings);
  if (speed == 0 || speed == static_cast<unsigned>(SPEED_UNKNOWN) || speed == UINT16_MAX)
    return std::nullopt;
  return speed;
}

std::optional<bool> offload_of(const base::Fd& socket, const std::string& name, unsigned which) {
  ethtool_value value{};
  value.cmd = which;
  if (!ask_ethtool(socket, name, value)) return std::nullopt;
  return value.data != 0;
}

std::string setting_text(const char* what, std::optional<bool> on) {
  return std::string(", ") + what + (!on ? " unknown" : *on ? " on" : " off");
}

void check_interface(Diagnosis& out, const base::Fd& socket, const std::string& name,
                     const Interface& one) {
  const auto mtu = mtu_of(socket, name);
  std::string found = one.addresses.empty() ? "no address" : one.addresses;
  found += mtu ? ", MTU " + std::to_string(*mtu) : ", MTU unknown";
  if ((one.flags & IFF_LOOPBACK) != 0) {
    out.ok(kArea, name, found + ", loopback");
    return;
  }
  const auto speed = speed_of(socket, name);
  found += speed ? ", " + std::to_string(*speed) + " Mbit/s" : ", speed unknown";
  if ((one.flags & IFF_RUNNING) == 0) found += ", no carrier";
  const auto tso = offload_of(socket, name, ETHTOOL_GTSO);
  const auto gro = offload_of(socket, name, ETHTOOL_GGRO);
  found += setting_text("TSO", tso) + setting_text("GRO", gro);
  std::string remedy;
  if (mtu && *mtu < kJumbo && speed && *speed >= kFastMbit)
    remedy = "`ip link set dev " + name +
             " mtu 9000`, on both hosts and all that lies between, or as much as that passes";
  if (tso == false || gro == false)
    remedy += (remedy.empty() ? "`ethtool -K " : "; `ethtool -K ") + name +
              (tso == false ? " tso on" : "") + (gro == false ? " gro on" : "") +
              "`: each segment of its MTU costs the CPU as much as 64 KiB do with it";
  out.add(remedy.empty() ? Level::ok : Level::warn, kArea, name, found, remedy);
}

/// Checks LINKSPAN_TCP_INTERFACES. Invalid options are reported under settings.
void check_chosen(Diagnosis& out, const base::Fd& socket,
                  const std::map<std::string, Interface>& up) {
  constexpr const char* kName = "LINKSPAN_TCP_INTERFACES";
  const auto options = base::Options::from_environment();
  if (!options.ok()) return;
  const auto chosen = transport::interfaces(*options);
  if (!chosen.ok()) {
    out.add(Level::fail, kArea, kName, chosen.status().what(),
            "set the names of interfaces that have an address, or unset it; no Engine opens until "
            "then");
    return;
  }
  if (chosen->empty()) return;
  std::string found, down;
  int least = INT_MAX, most = 0;
  for (const net::Interface& each : *chosen) {
    const auto mtu = mtu_of(socket, each.name);
    const auto one = up.find(each.name);
    if (mtu) least = std::min(least, *mtu), most = std::max(most, *mtu);
    if (one == up.end() || (one->second.flags & IFF_RUNNING) == 0)
      down += (down.empty() ? "" : ", ") + each.name;
    found += (found.empty() ? "" : "; ") + each.name;
    for (const net::Interface::At& at : each.at) found += " " + at.address.host();
    found += mtu ? ", MTU " + std::to_string(*mtu) : ", MTU unknown";
  }
  std::string remedy;
  if (!down.empty())
    remedy = "`ip link set dev NAME up`, or look at the cable: no stream goes by " + down;
  if (least < most)
    remedy += (remedy.empty() ? "" : "; ") + std::string("`ip link set dev NAME mtu ") +
              std::to_string(most) +
              "` for those that have less, on both hosts and all that lies between, or " +
              std::to_string(least) + " for all: streams share what is to be moved";
  out.add(remedy.empty() ? Level::ok : Level::warn, kArea, kName, found, remedy);
}

/// Reads the numbers of a file in /proc/sys/net; the last is the maximum of a buffer.
void check_limit(Diagnosis& out, const std::string& name) {
  std::string path = "/proc/sys/" + name;
  for (char& c : path)
    if (c == '.') c = '/';
  std::ifstream file(path);
  std::vector<std::uint64_t> numbers;
  for (std::uint64_t number = 0; file >> number;) numbers.push_back(number);
  if (numbers.empty()) {
    out.ok(kArea, name, "unknown: cannot read " + path);
    return;
  }
  const std::string found = "at most " + size_name(numbers.back());
  if (numbers.back() >= kWindow) {
    out.ok(kArea, name, found);
    return;
  }
  numbers.back() = kWindow;
  std::string wanted;
  for (const std::uint64_t number : numbers)
    wanted += (wanted.empty() ? "" : " ") + std::to_string(number);
  out.add(Level::warn, kArea, name, found,
          "`sysctl -w " + name + "=\"" + wanted +
              "\"`: what is on the way of one stream at a time, "
              "25 Gbit/s by 5 ms");
}

/// Checks whether the kernel can encrypt TLS.
void check_tls(Diagnosis& out) {
  constexpr const char* kName = "kTLS";
  std::ifstream file("/proc/sys/net/ipv4/tcp_available_ulp");
  if (!file) {
    out.ok(kArea, kName, "unknown: cannot read /proc/sys/net/ipv4/tcp_available_ulp");
    return;
  }
  for (std::string one; file >> one;)
    if (one == "tls") {
      out.ok(kArea, kName, "the kernel can encrypt what LINKSPAN_SECURITY=encrypted sends");
      return;
    }
  out.add(Level::ok, kArea, kName,
          "not in this kernel, or not loaded: what LINKSPAN_SECURITY=encrypted sends is encrypted "
          "by libssl",
          "`modprobe tls`, if the CPU's time matters");
}

}  // namespace

void check_network(Diagnosis& out) {
  const base::Fd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto all = interfaces();
  if (all.empty()) out.ok(kArea, "interfaces", "unknown: none is up, or getifaddrs() fails");
  for (const auto& [name, one] : all) check_interface(out, socket, name, one);
  check_chosen(out, socket, all);
  for (const char* name :
       {"net.core.rmem_max", "net.core.wmem_max", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"})
    check_limit(out, name);
  check_tls(out);
}

}  // namespace linkspan::tool
