#include "tests/support/network.hpp"

#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include "control/socket_address.hpp"
#include "tests/support/take.hpp"

namespace linkspan::test {
namespace {

constexpr const char* kAddresses[] = {"10.77.0.1", "10.77.0.2"};
constexpr Duration kDelay = 20ms, kPatience = 20s;

/// Returns the rule for packets that arrive by the cable.
const char* rule_of(Cable cable) {
  switch (cable) {
    case Cable::lossy:
    case Cable::lossy_with_small_windows:
      return "numgen random mod 100 == 0 counter drop";
    case Cable::slow:
      return "limit rate over 20 mbytes/second burst 256 kbytes counter drop";
    case Cable::plain:
    case Cable::small_packets:
      break;
  }
  return "accept";
}

/// Makes each packet on the cable one packet for the rules, and not a batch of a socket.
std::string set_up_of(Cable cable, const char* address) {
  std::string script = std::string("ip link set lo up; ip address add ") + address +
                       "/24 dev cable; ip link set cable up gso_max_segs 1 mtu " +
                       (cable == Cable::small_packets ? "1400" : "1500") +
                       "; nft 'table inet cable { chain in { type filter hook input priority 0; "
                       "iifname \"cable\" " +
                       rule_of(cable) + "; }; }'; ";
  if (cable == Cable::lossy_with_small_windows)
    for (const char* of : {"tcp_rmem", "tcp_wmem"})
      script += std::string("echo '4096 16384 16384' >/proc/sys/net/ipv4/") + of + "; ";
  return script;
}

Result<base::Fd> new_host() {
  // A namespace belongs to its thread, and exists while its file is open.
  return std::async(std::launch::async,
                    []() -> Result<base::Fd> {
                      if (::unshare(CLONE_NEWNET) != 0) {
                        if (errno == EPERM || errno == ENOSYS || errno == EINVAL)
                          return Status(Code::unsupported, Scope::process,
                                        "needs network namespaces");
                        return base::Fd::from("unshare", -1);
                      }
                      return base::Fd::from(
                          "open", ::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
                    })
      .get();
}

}  // namespace

const char* name_of(Cable cable) {
  switch (cable) {
    case Cable::plain:
      return "plain";
    case Cable::lossy:
      return "lossy";
    case Cable::slow:
      return "slow";
    case Cable::small_packets:
      return "small_packets";
    case Cable::lossy_with_small_windows:
      break;
  }
  return "lossy_with_small_windows";
}

Result<std::unique_ptr<Network>> Network::create(Cable cable) {
  std::unique_ptr<Network> made(new Network(cable));
  for (base::Fd& host : made->hosts_) {
    auto namespace_of_it = new_host();
    if (!namespace_of_it.ok()) return namespace_of_it.status();
    host = *std::move(namespace_of_it);
  }
  if (Status status = made->set_up(); !status.ok()) return status;
  return made;
}

Status Network::set_up() {
  try {
    run(Host::near, "ip link add cable type veth peer name cable netns " + far_name());
    run(Host::near, set_up_of(cable_, kAddresses[0]));
    run(Host::far, set_up_of(cable_, kAddresses[1]));
    auto listening = at(Host::far, [] {
      return take(net::listen_at(take(net::resolve(kAddresses[1], 0)).front()));
    });
    const auto where = take(net::address_of(listening));
    const auto way = take(control::parse_address(way_to("tcp:" + where.to_string()), ""));
    const base::MutexLock lock(mutex_);
    listening_ = std::move(listening);
    way_ = take(net::resolve(way.host, way.port)).front();
  } catch (const std::runtime_error& error) {
    return {Code::system, Scope::process, std::string("no network: ") + error.what()};
  }
  return {};
}

std::string Network::far_name() const {
  return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(hosts_[1].get());
}

void Network::add_cable(int n) const {
  const std::string number = std::to_string(n), net = "10.78." + number + ".";
  const auto up = [&](const std::string& name, const char* last) {
    return "ip address add " + net + last + "/24 dev " + name + number + "; ip link set " + name +
           number + " up";
  };
  run(Host::near, "ip link add near" + number + " type veth peer name far" + number + " netns " +
                      far_name() + "; " + up("near", "1"));
  run(Host::far, up("far", "2"));
}

void Network::enter(Host host) const {
  if (::setns(hosts_[static_cast<std::size_t>(host)].get(), CLONE_NEWNET) != 0)
    throw std::runtime_error("setns");
}

std::string Network::run(Host host, const std::string& command) const {
  return at(host, [&] {
    std::FILE* const pipe =
        ::popen(("exec 2>&1; set -e; PATH=$PATH:/usr/sbin:/sbin; " + command).c_str(), "re");
    if (pipe == nullptr) throw std::runtime_error("popen");
    std::string said;
    std::array<char, 4096> some{};
    while (const std::size_t got = std::fread(some.data(), 1, some.size(), pipe))
      said.append(some.data(), got);
    if (::pclose(pipe) != 0) throw std::runtime_error(command + ": " + said);
    return said;
  });
}

std::string Network::listen_at(Host host) {
  return std::string("tcp:") + kAddresses[static_cast<std::size_t>(host)] + ":0";
}

std::string Network::way_to(const std::string& far) {
  if (cable_ != Cable::slow) return far;
  const auto parsed = take(control::parse_address(far, ""));
  const auto to = take(net::resolve(parsed.host, parsed.port)).front();
  auto line = at(Host::far, [&] {
    return take(DelayLine::start(take(net::resolve(kAddresses[1], 0)).front(), to, kDelay));
  });
  const std::string way = "tcp:" + line->address().to_string();
  const base::MutexLock lock(mutex_);
  delays_.push_back(std::move(line));
  return way;
}

std::pair<base::Fd, base::Fd> Network::connection() {
  const base::MutexLock lock(mutex_);  // they are accepted in the order in which they are made
  const auto limit = base::Deadline::after(base::Clock::steady(), kPatience);
  auto near = at(Host::near, [&, way = way_] { return take(net::connect_to(way, limit)); });
  base::Fd far;
  while (!far.valid()) {
    pollfd ready{.fd = listening_.get(), .events = POLLIN, .revents = 0};
    ::poll(&ready, 1, limit.left_ms());
    far = base::Fd(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!far.valid() && limit.passed()) throw std::runtime_error("no connection has come");
  }
  net::prepare(near);
  net::prepare(far);
  return {std::move(near), std::move(far)};
}

void Network::cut() {
  for (const Host host : {Host::near, Host::far})
    run(host,
        "nft 'table inet cut { chain in { type filter hook input priority -1; "
        "iifname \"cable\" drop; }; }'");
}

void Network::mend() {
  for (const Host host : {Host::near, Host::far}) run(host, "nft delete table inet cut");
}

std::uint64_t Network::dropped() const {
  std::uint64_t all = 0;
  for (const Host host : {Host::near, Host::far}) {
    const std::string rules = run(host, "nft list chain inet cable in");
    constexpr std::string_view kCounted = "counter packets ";
    const std::size_t at = rules.find(kCounted);
    if (at != std::string::npos) all += std::stoull(rules.substr(at + kCounted.size()));
  }
  return all;
}

Result<Network*> network_of_tests() {
  static const auto kMade = []() -> Result<std::unique_ptr<Network>> {
    const char* const asked = std::getenv("LINKSPAN_TEST_LINK");
    if (asked == nullptr) return std::unique_ptr<Network>();
    std::string names;
    for (const Cable each : kBadCables) {
      if (std::string_view(asked) == name_of(each)) return Network::create(each);
      names.append(names.empty() ? "" : ", ").append(name_of(each));
    }
    return Status(Code::invalid_argument, Scope::process,
                  "LINKSPAN_TEST_LINK=" + std::string(asked) + " is none of " + names);
  }();
  if (!kMade.ok()) return kMade.status();
  return kMade->get();
}

}  // namespace linkspan::test
