#include "bench/tcp_ways/wire.hpp"

#include <arpa/inet.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>

#include <cstring>
#include <future>
#include <string_view>
#include <vector>

#include "bench/tcp_ways/ways.hpp"
#include "control/tcp_socket.hpp"

namespace linkspan::bench {
namespace {

constexpr const char *kNear = "10.77.0.1", *kFar = "10.77.0.2", *kCard = "cable";
constexpr Duration kPatience = std::chrono::seconds(10);

Status failed(const char* what, int error, Code code = Code::system) {
  return {code, Scope::process, std::string(what) + ": " + std::generic_category().message(error)};
}

/// By a thread of that namespace: what it makes belongs there.
template <class Work>
auto at(const base::Fd& space, Work work) -> decltype(work()) {
  return std::async(std::launch::async,
                    [&]() -> decltype(work()) {
                      if (space.valid() && ::setns(space.get(), CLONE_NEWNET) != 0)
                        return failed("setns", errno);
                      return work();
                    })
      .get();
}

Result<base::Fd> new_space() {
  return std::async(std::launch::async,
                    []() -> Result<base::Fd> {
                      if (::unshare(CLONE_NEWNET) != 0)
                        return failed("network namespaces", errno, Code::unsupported);
                      return base::Fd::from(
                          "open", ::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
                    })
      .get();
}

/// A message of rtnetlink(7): attributes lie behind each other, or in each other.
class Message {
 public:
  void put(const void* bytes, std::size_t count) {
    const auto* const begin = static_cast<const std::byte*>(bytes);
    all_.insert(all_.end(), begin, begin + count);
    all_.resize(NLMSG_ALIGN(all_.size()));
  }
  std::size_t open(unsigned short type) {
    const std::size_t at = all_.size();
    const rtattr head{.rta_len = 0, .rta_type = type};
    put(&head, sizeof head);
    return at;
  }
  void close(std::size_t at) {
    const auto bytes = static_cast<unsigned short>(all_.size() - at);
    std::memcpy(all_.data() + at, &bytes, sizeof bytes);
  }
  void add(unsigned short type, const void* bytes, std::size_t count) {
    const std::size_t at = open(type);
    put(bytes, count);
    close(at);
  }
  void add(unsigned short type, std::string_view text) { add(type, text.data(), text.size() + 1); }

  /// What the kernel answers.
  Status ask() {
    const auto bytes = static_cast<std::uint32_t>(all_.size());
    std::memcpy(all_.data(), &bytes, sizeof bytes);  // nlmsghdr::nlmsg_len
    const auto socket =
        base::Fd::from("socket", ::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
    if (!socket.ok()) return socket.status();
    if (::send(socket->get(), all_.data(), all_.size(), 0) < 0)
      return failed("rtnetlink", errno, Code::unsupported);
    struct {
      nlmsghdr head;
      nlmsgerr error;
    } answer{};
    const ssize_t got = ::recv(socket->get(), &answer, sizeof answer, MSG_TRUNC);
    if (got < static_cast<ssize_t>(sizeof answer.head + sizeof answer.error.error) ||
        answer.head.nlmsg_type != NLMSG_ERROR)
      return {Code::system, Scope::process, "rtnetlink: no answer"};
    if (answer.error.error != 0)
      return failed("a veth pair", -answer.error.error, Code::unsupported);
    return {};
  }

 private:
  std::vector<std::byte> all_;
};

/// veth(4), by a thread of the one namespace, into the other.
Status join(const base::Fd& other) {
  Message wanted;
  const nlmsghdr head{.nlmsg_len = 0,
                      .nlmsg_type = RTM_NEWLINK,
                      .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL,
                      .nlmsg_seq = 1,
                      .nlmsg_pid = 0};
  const ifinfomsg link{};
  const int space = other.get();
  wanted.put(&head, sizeof head);
  wanted.put(&link, sizeof link);
  wanted.add(IFLA_IFNAME, kCard);
  const auto info = wanted.open(IFLA_LINKINFO);
  wanted.add(IFLA_INFO_KIND, "veth");
  const auto data = wanted.open(IFLA_INFO_DATA);
  const auto peer = wanted.open(VETH_INFO_PEER);
  wanted.put(&link, sizeof link);
  wanted.add(IFLA_IFNAME, kCard);
  wanted.add(IFLA_NET_NS_FD, &space, sizeof space);
  for (const std::size_t each : {peer, data, info}) wanted.close(each);
  return wanted.ask();
}

/// netdevice(7)
Status bring_up(const char* address) {
  const auto socket = base::Fd::from("socket", ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket.ok()) return socket.status();
  ifreq card{};
  std::memcpy(card.ifr_name, kCard, std::strlen(kCard));
  sockaddr_in number{};
  number.sin_family = AF_INET;
  ::inet_pton(AF_INET, address, &number.sin_addr);
  std::memcpy(&card.ifr_addr, &number, sizeof number);
  if (::ioctl(socket->get(), SIOCSIFADDR, &card) != 0) return failed("SIOCSIFADDR", errno);
  card.ifr_flags = IFF_UP;
  if (::ioctl(socket->get(), SIOCSIFFLAGS, &card) != 0) return failed("SIOCSIFFLAGS", errno);
  return {};
}

void limit(const base::Fd& socket) {
  const timeval most{.tv_sec = std::chrono::duration_cast<std::chrono::seconds>(kLimit).count(),
                     .tv_usec = 0};
  (void)::fcntl(socket.get(), F_SETFL, 0);  // blocking
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
  control::prepare(socket);
}

}  // namespace

Result<Wire> Wire::veth() {
  Wire wire;
  wire.address_ = kFar;
  for (base::Fd* const space : {&wire.near_, &wire.far_}) {
    auto made = new_space();
    if (!made.ok()) return made.status();
    *space = *std::move(made);
  }
  if (Status s = at(wire.near_, [&] { return join(wire.far_); }); !s.ok()) return s;
  if (Status s = at(wire.near_, [] { return bring_up(kNear); }); !s.ok()) return s;
  if (Status s = at(wire.far_, [] { return bring_up(kFar); }); !s.ok()) return s;
  return wire;
}

Result<Pair> Wire::connect() const {
  const auto deadline = base::Deadline::after(base::Clock::steady(), kPatience);
  const auto where = control::resolve(address_, 0);
  if (!where.ok()) return where.status();
  const auto listening = at(far_, [&] { return control::listen_at(where->front()); });
  if (!listening.ok()) return listening.status();
  const auto bound = control::address_of(*listening);
  if (!bound.ok()) return bound.status();
  auto from = at(near_, [&] { return control::connect_to(*bound, deadline); });
  if (!from.ok()) return from.status();
  auto to = base::Fd::from("accept", ::accept4(listening->get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!to.ok()) return to.status();
  limit(*from);
  limit(*to);
  return Pair{*std::move(from), *std::move(to)};
}

}  // namespace linkspan::bench
