#include "bench/tcp_ways/ways.hpp"

#include <linux/errqueue.h>
#include <netinet/in.h>
#include <sys/epoll.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <thread>

#include "base/clock.hpp"
#include "base/fd.hpp"

namespace linkspan::bench {
namespace {

constexpr Duration kSpin = std::chrono::microseconds(100);  // as threads of the transport's streams
constexpr std::uint64_t kFewSends = 16;

Status failed(const char* call, int error) {
  const bool late = error == EAGAIN || error == EWOULDBLOCK;
  const bool full = error == ENOBUFS || error == ENOMEM;  // ulimit -l, net.core.optmem_max
  return {late   ? Code::timed_out
          : full ? Code::no_resource
                 : Code::system,
          Scope::peer, std::string(call) + ": " + std::generic_category().message(error)};
}

/// `busy` is asked where the socket takes nothing, with errno; `sent` is told of each call.
template <class Busy, class Sent>
Status send_all(int to, std::vector<Frame>& frames, int flags, Busy busy, Sent sent) {
  for (Frame& frame : frames) {
    for (bool whole = false; !whole;) {
      const ssize_t bytes = ::sendmsg(to, &frame.message, flags | MSG_NOSIGNAL);
      if (bytes < 0 && errno == EINTR) continue;
      if (bytes < 0) {
        if (Status s = busy(errno); !s.ok()) return s;
        continue;
      }
      sent();
      whole = advance(frame.message, static_cast<std::size_t>(bytes));
    }
  }
  return {};
}

template <class Busy>
Status receive_all(int from, Incoming& incoming, int flags, Busy busy) {
  while (!incoming.done()) {
    const ssize_t bytes = ::recvmsg(from, &incoming.next(), flags);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes == 0) return {Code::disconnected, Scope::peer, "recvmsg: the other end is closed"};
    if (Status s = bytes < 0 ? busy(errno) : incoming.got(static_cast<std::size_t>(bytes)); !s.ok())
      return s;
  }
  return {};
}

Status always() { return {}; }
Status as_it_is(int /*to*/) { return {}; }

// ---- blocking calls: the socket's own time limits end them --------------------------------------
Result<ZeroCopy> send_blocking(int to, std::vector<Frame>& frames, const Begin& begin) {
  begin();
  if (Status s = send_all(
          to, frames, 0, [](int error) { return failed("sendmsg", error); }, [] {});
      !s.ok())
    return s;
  return ZeroCopy{};
}

Status receive_blocking(int from, Incoming& incoming, const Begin& begin) {
  begin();
  return receive_all(from, incoming, 0, [](int error) { return failed("recvmsg", error); });
}

// ---- calls that do not block, under edge-triggered epoll
// -----------------------------------------
class Events {
 public:
  static Result<Events> of(int socket, bool spins) {
    auto epoll = base::Fd::from("epoll_create1", ::epoll_create1(EPOLL_CLOEXEC));
    if (!epoll.ok()) return epoll.status();
    epoll_event all{.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data = {.fd = socket}};
    if (::epoll_ctl(epoll->get(), EPOLL_CTL_ADD, socket, &all) != 0)
      return failed("epoll_ctl", errno);
    return Events(*std::move(epoll), spins);
  }
  /// Until something has happened since the last one.
  Status wait() const {
    const base::Clock& clock = base::Clock::steady();
    for (const auto begin = clock.now(); spins_ && clock.now() - begin < kSpin;) {
      if (poll(0) > 0) return {};
      std::this_thread::yield();
    }
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(kLimit).count();
    const int count = poll(static_cast<int>(ms));
    if (count == 0) return failed("epoll_wait", EAGAIN);
    return count > 0 || errno == EINTR ? Status() : failed("epoll_wait", errno);
  }

 private:
  Events(base::Fd epoll, bool spins) : epoll_(std::move(epoll)), spins_(spins) {}
  int poll(int ms) const {
    epoll_event event{};
    return ::epoll_wait(epoll_.get(), &event, 1, ms);
  }
  base::Fd epoll_;
  bool spins_;
};

template <bool kSpins>
Result<ZeroCopy> send_epoll(int to, std::vector<Frame>& frames, const Begin& begin) {
  const auto events = Events::of(to, kSpins);
  if (!events.ok()) return events.status();
  begin();
  const auto busy = [&](int error) {
    return error == EAGAIN ? events->wait() : failed("sendmsg", error);
  };
  if (Status s = send_all(to, frames, MSG_DONTWAIT, busy, [] {}); !s.ok()) return s;
  return ZeroCopy{};
}

template <bool kSpins>
Status receive_epoll(int from, Incoming& incoming, const Begin& begin) {
  const auto events = Events::of(from, kSpins);
  if (!events.ok()) return events.status();
  begin();
  return receive_all(from, incoming, MSG_DONTWAIT, [&](int error) {
    return error == EAGAIN ? events->wait() : failed("recvmsg", error);
  });
}

// ---- the same with MSG_ZEROCOPY (Documentation/networking/msg_zerocopy.rst)
// ----------------------
Status want_zerocopy(int to) {
  const int yes = 1;
  if (::setsockopt(to, SOL_SOCKET, SO_ZEROCOPY, &yes, sizeof yes) == 0) return {};
  return {Code::unsupported, Scope::process,
          "SO_ZEROCOPY: " + std::generic_category().message(errno)};
}

Status zerocopy_offered() {
  const auto some = base::Fd::from("socket", ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return some.ok() ? want_zerocopy(some->get()) : some.status();
}

/// What the kernel has done with, from the socket's error queue. How many sends that were.
Result<std::uint64_t> drain(int to, ZeroCopy& told) {
  std::uint64_t count = 0;
  for (;;) {
    alignas(cmsghdr) std::array<char, 128> room{};
    msghdr message{};
    message.msg_control = room.data();
    message.msg_controllen = room.size();
    if (::recvmsg(to, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) {
      if (errno == EINTR) continue;
      return errno == EAGAIN ? Result<std::uint64_t>(count) : failed("recvmsg", errno);
    }
    const cmsghdr* const part = CMSG_FIRSTHDR(&message);
    if (part == nullptr || part->cmsg_len < CMSG_LEN(sizeof(sock_extended_err))) continue;
    sock_extended_err end{};
    std::memcpy(&end, CMSG_DATA(part), sizeof end);
    if (end.ee_origin != SO_EE_ORIGIN_ZEROCOPY)
      return failed("zero copy", static_cast<int>(end.ee_errno));
    // From one number to the other, which begin anew after 2^32.
    const std::uint64_t sends = std::uint64_t{end.ee_data - end.ee_info} + 1;
    count += sends;
    if ((end.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) != 0) told.copied += sends;
  }
}

Result<ZeroCopy> send_zerocopy(int to, std::vector<Frame>& frames, const Begin& begin) {
  const auto events = Events::of(to, false);
  if (!events.ok()) return events.status();
  begin();
  ZeroCopy told;
  std::uint64_t under_way = 0;
  const auto collect = [&]() -> Status {
    const auto count = drain(to, told);
    if (count.ok()) under_way -= *count;
    return count.status();
  };
  // ENOBUFS: as much as the socket may have of it is under way (net.core.optmem_max, ulimit -l).
  const auto busy = [&](int error) -> Status {
    if (error != EAGAIN && (error != ENOBUFS || under_way == 0)) return failed("sendmsg", error);
    const std::uint64_t before = under_way;
    if (Status s = collect(); !s.ok()) return s;
    return error == ENOBUFS && under_way < before ? Status() : events->wait();
  };
  Status drained;
  const auto sent = [&] {
    ++told.sends;
    if (++under_way % kFewSends == 0 && drained.ok()) drained = collect();
  };
  if (Status s = send_all(to, frames, MSG_DONTWAIT | MSG_ZEROCOPY, busy, sent); !s.ok()) return s;
  while (drained.ok() && under_way != 0) {
    drained = collect();
    if (drained.ok() && under_way != 0) drained = events->wait();
  }
  if (!drained.ok()) return drained;
  return told;
}

constexpr Way kWays[] = {
    {"blocking", always, as_it_is, send_blocking, receive_blocking},
    {"epoll", always, as_it_is, send_epoll<false>, receive_epoll<false>},
    {"epoll_spin", always, as_it_is, send_epoll<true>, receive_epoll<true>},
    {"zerocopy", zerocopy_offered, want_zerocopy, send_zerocopy, receive_epoll<false>},
    {"uring", uring_offered, as_it_is, uring_send, uring_receive},
    {"uring_zerocopy", uring_zerocopy_offered, as_it_is, uring_send_zerocopy, uring_receive},
};

}  // namespace

std::span<const Way> ways() { return kWays; }

}  // namespace linkspan::bench
