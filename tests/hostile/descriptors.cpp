// Passes descriptors to the victim whose close(2) blocks, or that are not what they should be.
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/timerfd.h>

#include <deque>
#include <memory>

#include "control/introspection_socket.hpp"
#include "tests/hostile/attack.hpp"
#include "tests/hostile/raw_attacker.hpp"
#include "tests/support/lingering_socket.hpp"
#include "tests/support/raw_message.hpp"

namespace linkspan::test {
namespace descriptors {

using control::FrameOp;
using Done = std::atomic<std::uint64_t>;

/// Sockets that the victim owns and that block its close(2).
class Standing {
 public:
  /// Passes one with the first byte of a header, which is not complete before this process has no
  /// reference of its own: the last close(2) is the victim's.
  bool begin_to_pass(int socket, std::span<const std::byte> bytes) {
    auto next = std::make_unique<LingeringSocket>();
    if (send_message(socket, bytes.first(1), std::span(&next->socket, 1)) != 1) return false;
    next->socket = base::Fd();
    standing_.push_back(std::move(next));
    if (standing_.size() > kMax) standing_.pop_front();
    return true;
  }
  bool pass(int socket, std::span<const std::byte> bytes) {
    return begin_to_pass(socket, bytes) &&
           send_message(socket, bytes.subspan(1), {}) == static_cast<ssize_t>(bytes.size() - 1);
  }

 private:
  /// Below base::FdCloser::kMaxWaiting, where new connections wait.
  static constexpr std::size_t kMax = 100;
  std::deque<std::unique_ptr<LingeringSocket>> standing_;
};

std::vector<std::byte> frame(FrameOp op, std::uint32_t bytes) {
  const auto head = encode(base::FrameHeader{.length = bytes,
                                             .op = static_cast<std::uint16_t>(op),
                                             .id = 1,
                                             .incarnation = kRawIncarnation});
  std::vector<std::byte> all(head.begin(), head.end());
  all.resize(all.size() + bytes);
  return all;
}

/// Passes them with a hello that is refused, a frame that never ends, a frame without need for
/// them, and a goodbye.
void pass_standing(const Target& target, const std::stop_token& stop, Done& done) {
  constexpr FrameOp kOps[] = {FrameOp::hello, FrameOp::hello, FrameOp::collect, FrameOp::goodbye};
  Standing standing;
  for (std::size_t i = 0; !stop.stop_requested(); ++i) {
    RawAttacker attacker(target.unix_address, stop);
    if (!attacker.connected() || (i % 4 >= 2 && !attacker.greet())) continue;
    const std::vector<std::byte> bytes = frame(kOps[i % 4], i % 4 < 2 ? 8 : 0);
    const bool passed = i % 4 == 1 ? standing.begin_to_pass(attacker.fd(), bytes)
                                   : standing.pass(attacker.fd(), bytes);
    done += passed ? 1 : 0;
    if (i % 8 < 4) (void)attacker.hear();
  }
}

/// Does the same at the socket of `linkspan ps`.
void pass_standing_to_operators(const Target& target, const std::stop_token& stop, Done& done) {
  Standing standing;
  while (!stop.stop_requested())
    for (const std::string& each : control::introspection_sockets(target.socket_folder)) {
      if (!each.starts_with(target.socket_folder)) continue;
      auto call = control::IntrospectionCall::connect(each);
      if (!call.ok()) continue;
      done += standing.pass(call->fd(), frame(FrameOp::hello, 0)) ? 1 : 0;
    }
}

base::Fd odd_one(std::size_t i) {
  int raw[2] = {-1, -1};
  switch (i % 9) {
    case 0:
      if (::pipe2(raw, O_CLOEXEC) == 0) ::close(raw[1]);
      return base::Fd(raw[0]);
    case 1:
      return base::Fd(::eventfd(0, EFD_CLOEXEC));
    case 2:
      return base::Fd(::memfd_create("odd", MFD_CLOEXEC | MFD_ALLOW_SEALING));  // no seals, no size
    case 3:
      return base::Fd(::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    case 4:
      return base::Fd(::open("/dev/zero", O_RDWR | O_CLOEXEC));
    case 5:
      return base::Fd(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC));
    case 6:
      return base::Fd(::epoll_create1(EPOLL_CLOEXEC));
    case 7:
      return base::Fd(::memfd_create("odd", MFD_CLOEXEC));  // cannot be sealed
    default:
      return take(base::open_pidfd(::getpid()));
  }
}

/// Passes others in the place of the process, of the notifications, and of the completion flags.
void pass_odd_ones(const Target& target, const std::stop_token& stop, Done& done) {
  const control::Hello hello{
      .engine = "hostile", .process = base::this_process(), .key_share = {}, .transports = {}};
  for (std::size_t i = 0; !stop.stop_requested(); ++i) {
    RawAttacker attacker(target.unix_address, stop);
    std::vector<base::Fd> fds;
    if (i % 3 != 0) fds.push_back(take(base::open_pidfd(::getpid())));
    if (i % 3 != 2) fds.push_back(odd_one(i / 3));
    bool passed = attacker.say(FrameOp::hello, control::encode(hello), fds);
    if (i % 3 == 2) {
      fds.clear();
      for (std::size_t many = 0; many < 20; ++many) fds.push_back(odd_one(i / 3 + many));
      passed = attacker.say(FrameOp::ready, {}) && attacker.to_transport(7, {}, fds);
    }
    done += passed ? 1 : 0;
    (void)attacker.hear();
  }
}

const bool kAdded[] = {
    add_attack({.name = "DescriptorsThatStandStill", .run = pass_standing, .least = 50}),
    add_attack({.name = "DescriptorsThatStandStillAtTheOperatorsSocket",
                .run = pass_standing_to_operators,
                .least = 50}),
    add_attack({.name = "OddDescriptors", .run = pass_odd_ones, .least = 100}),
};

}  // namespace descriptors
}  // namespace linkspan::test
